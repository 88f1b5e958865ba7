"""The reliability programme: its checker, its proxy and its agents."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from benchmarks.reliability.check import judge
from benchmarks.reliability.expected_samples import ROWS, STREAMS, rows_of
from benchmarks.reliability.load import Load, Record, shortened_delays
from benchmarks.reliability.malformed import Post, understood
from benchmarks.reliability.proxy import FAIR, Proxy, Weather

BATCH = ROWS * len(STREAMS)


@pytest.fixture
def record():
    """Two batches of one rank, of which the first was acknowledged."""
    return Record("r", batches={(0, 0): 10.0, (0, 1): 20.0}, acknowledged={(0, 0)})


@pytest.fixture
def first():
    return list(rows_of("r", 0, 0, 10.0))


def test_a_store_with_all_acknowledged_samples_passes(record, first):
    verdict = judge(record, first)
    assert verdict.is_right
    assert (verdict.sent, verdict.acknowledged, verdict.found) == (2 * BATCH, BATCH, BATCH)


def test_an_unacknowledged_sample_may_be_stored_once(record, first):
    second = list(rows_of("r", 0, 1, 20.0))
    assert judge(record, first + second).is_right
    assert judge(record, first + second + second).doubled == BATCH


def test_missing_and_duplicate_samples_are_counted(record, first):
    assert judge(record, first[1:]).lost == 1
    assert judge(record, [*first, first[3]]).doubled == 1


@pytest.mark.parametrize(
    "change", [{"value": 1}, {"step": ROWS}, {"rank": 1}, {"time_s": 10.5}, {"stream": "cuda"}]
)
def test_a_sample_with_another_value_or_position_is_foreign(record, first, change):
    verdict = judge(record, [replace(first[0], **change), *first[1:]])
    assert (verdict.foreign, verdict.lost) == (1, 1)


def test_wrong_counters_are_reported(record, first):
    assert not judge(record, first, ("the stream says 7 samples",)).is_right


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        with suppress(ConnectionError):
            while data := self.request.recv(65536):
                self.request.sendall(data)


@pytest.fixture
def proxy():
    """A proxy before a server that sends everything back."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        proxy = Proxy(server.server_address, Random(1))
        yield proxy
        proxy.close()
        server.shutdown()
        thread.join()


def echoed(proxy, body):
    """Return the bytes echoed until the connection ends, and whether it was reset."""
    response = b""
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                response += part
    except OSError:  # shutdown, too, finds that it is gone
        return response, True
    return response, False


def test_everything_passes_without_faults(proxy):
    body = bytes(range(256)) * 4096
    assert echoed(proxy, body) == (body, False)


def test_connections_break_at_random_bytes_in_either_direction(proxy):
    proxy.set(Weather(most_bytes=1000))
    body = bytes(2000)
    results = [echoed(proxy, body) for _ in range(30)]
    assert all(len(response) < 1000 for response, _ in results)
    assert len({len(response) for response, _ in results}) > 5
    assert {is_reset for _, is_reset in results} == {True, False}
    proxy.set(FAIR)
    assert echoed(proxy, body) == (body, False)


def test_a_proxy_without_a_target_resets_connections(proxy, tmp_path):
    proxy.aim(tmp_path / "no-socket")
    assert echoed(proxy, b"x") == (b"", True)


def test_a_permanent_refusal_is_recorded(start_server, tmp_path):
    server = start_server("--role", "web")
    with shortened_delays(), Load(server.url, "r", tmp_path, ranks=1) as load:
        load.wait_for(2)
        batch = {
            "seq": len(load.record.batches) + 20,
            "chunks": [],
        }  # somebody else took a number of this rank
        assert server.post("/api/v1/runs/r/batches", batch).status == 200
        load.wait_until_told(" answered 409 ")
        assert any(" answered 409 " in message for message in load.record.wrong)
        assert not load.drain(0.1)


def test_an_accepted_batch_is_known_by_integral_floats_too():
    post = Post("batch", b'{"rank": 2.0, "seq": 0.0}', "application/json", "")
    batch = understood(post)
    assert (batch.rank, batch.attempt, batch.seq) == (2, 0, 0)
