"""The sender against a local HTTP server that fails in realistic ways."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memagent.delivery.api_client import HttpTransport
from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import Envelope, seal
from memagent.delivery.run_file import RunFile, read_frames
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard
from memagent.wire.codec import decode
from memagent.wire.messages import Batch, Finish, RunStart
from tests.waiting import PATIENCE_S, wait_until

REPLY = {"accepted": 1, "next_seq": 1}
AWAY = "http://127.0.0.1:9"
"""The port `discard`: nobody listens there."""


class FarEnd:
    """Answers each request with the next of `answers` (status, body, headers), then with 200; keeps (path, headers, body)."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.delay_s = 0.0
        far_end = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(far_end.delay_s)
                far_end.requests.append((self.path, dict(self.headers), body))
                status, response, headers = (
                    far_end.answers.pop(0)
                    if far_end.answers
                    else (200, json.dumps(REPLY).encode(), {})
                )
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(response))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(response)
                except OSError:
                    pass  # the sender did not wait

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def batches(self) -> list[int]:
        return [
            decode(body, Batch).seq for path, _, body in self.requests if path.endswith("/batches")
        ]


@pytest.fixture
def far_end():
    far_end = FarEnd()
    yield far_end
    far_end.server.shutdown()
    far_end.server.server_close()


@pytest.fixture
def drops():
    return DroppedSamples()


@pytest.fixture
def path(tmp_path):
    """Return the path of the run's file."""
    return tmp_path / "runs" / "r1.memagent"


@pytest.fixture
def make_sender(drops, path):
    replies = []
    senders = []

    def make(url: str | None, token: str | None = None) -> Sender:
        file = RunFile(path, seal("r1", RunStart(run_id="r1")))
        transport = HttpTransport(url, token) if url else None
        sender = Sender(file, transport, drops, ErrorGuard(raise_errors=True), replies.append)
        sender.replies = replies
        sender.start()
        senders.append(sender)
        return sender

    yield make
    for sender in senders:
        sender.close(0.0)


def batch(seq: int, samples: int = 10):
    return seal("r1", Batch(seq=seq), samples=samples)


def test_nothing_is_sent_before_it_starts(far_end, path, drops):
    file = RunFile(path, seal("r1", RunStart(run_id="r1")))
    replies, starts = [], []
    sender = Sender(
        file, HttpTransport(far_end.url, None), drops, ErrorGuard(raise_errors=True),
        replies.append, starts.append,
    )  # fmt: skip
    sender.put(batch(0))
    assert sender._thread is None and not far_end.requests
    sender.start()
    wait_until(lambda: replies)
    sender.close(5.0)
    assert far_end.batches() == [0] and not drops


def test_one_that_never_started_leaves_its_queue_on_the_disk(far_end, path, drops):
    file = RunFile(path, seal("r1", RunStart(run_id="r1")))
    transport = HttpTransport(far_end.url, None)
    sender = Sender(file, transport, drops, ErrorGuard(raise_errors=True), lambda _: None)
    sender.put(batch(0))
    sender.close(5.0)
    assert not far_end.requests
    assert [kind for kind, _ in read_frames(path)] == ["start", "batch"]


def test_it_starts_the_run_then_sends_in_order(far_end, make_sender, drops):
    sender = make_sender(far_end.url, token="hush")
    for seq in range(5):
        sender.put(batch(seq))
    sender.close(5)
    assert [path for path, _, _ in far_end.requests][:2] == [
        "/api/v1/runs",
        "/api/v1/runs/r1/batches",
    ]
    assert far_end.batches() == [0, 1, 2, 3, 4] and not drops
    assert {headers["Authorization"] for _, headers, _ in far_end.requests} == {"Bearer hush"}
    assert len(sender.replies) == 5


@pytest.mark.parametrize(
    "answer",
    [
        (500, b"oops", {}),
        (503, b"", {"Retry-After": "0"}),
        (200, b"<html>a proxy</html>", {}),
        (401, b"{}", {}),
    ],
)
def test_it_sends_the_same_bytes_again_after_a_failure(far_end, make_sender, drops, answer, capsys):
    far_end.answers = [(201, b"{}", {}), answer]
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    wait_until(lambda: len(sender.replies) == 1)
    sender.close(5)
    bodies = [body for path, _, body in far_end.requests if path.endswith("/batches")]
    assert len(bodies) == 2 and bodies[0] == bodies[1] and not drops
    assert "training continues" in capsys.readouterr().err


def test_a_rejected_batch_is_counted_and_the_next_ones_are_sent(
    far_end, make_sender, drops, capsys
):
    far_end.answers = [(201, b"{}", {}), (422, b'{"detail": "chunks[0]: bad"}', {})]
    sender = make_sender(far_end.url)
    sender.put(batch(0, samples=7))
    sender.put(batch(1))
    sender.close(5)
    assert far_end.batches() == [0, 1] and drops == {"rejected": 7}
    assert "chunks[0]: bad" in capsys.readouterr().err


def test_the_same_refusal_is_reported_once(far_end, make_sender, drops, capsys):
    far_end.answers = [(201, b"{}", {})] + [(422, b'{"detail": "chunks[0]: bad"}', {})] * 3
    sender = make_sender(far_end.url)
    for seq in range(3):
        sender.put(batch(seq, samples=1))
    sender.close(5)
    assert drops["rejected"] == 3 and capsys.readouterr().err.count("chunks[0]: bad") == 1


@pytest.mark.parametrize("forgets", [False, True])
def test_a_run_whose_start_is_refused_stays_in_its_file(
    far_end, make_sender, drops, capsys, forgets
):
    refused = (405, b'{"detail": "no such thing here"}', {})
    far_end.answers = [(201, b"{}", {}), (404, b"{}", {}), refused] if forgets else [refused]
    sender = make_sender(far_end.url)
    for seq in range(3):
        sender.put(batch(seq))
        wait_until(lambda: not far_end.answers)
    sender.close(5)
    stderr = capsys.readouterr().err
    assert not drops and stderr.count("nothing more is sent") == 1 and "samples wait in" in stderr
    assert len(far_end.requests) == (3 if forgets else 1)
    assert [kind for kind, _ in read_frames(sender._file.path)] == [
        "start",
        "batch",
        "batch",
        "batch",
    ]


def test_a_server_without_the_run_gets_its_start_again(far_end, make_sender, drops):
    far_end.answers = [(201, b"{}", {}), (404, b"{}", {})]
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    sender.close(5)
    paths = [path.rpartition("/")[2] for path, _, _ in far_end.requests]
    assert paths == ["runs", "batches", "runs", "batches"] and not drops


def test_the_disk_is_empty_after_complete_delivery(far_end, make_sender, path):
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    sender.close(5)
    assert far_end.batches() == [0] and list(path.parent.iterdir()) == []


def test_every_envelope_is_written_at_once_during_an_outage(make_sender, path):
    sender = make_sender(AWAY)
    for seq in range(3):
        sender.put(batch(seq))
        assert seqs_in(path) == list(range(seq + 1))


def test_undelivered_samples_stay_on_the_disk_at_exit(make_sender, drops, path, capsys):
    sender = make_sender(AWAY)
    sender.put(batch(0, samples=3))
    sender.put(batch(1, samples=4))
    wait_until(lambda: sender.is_failing)
    sender.close(5.0)
    assert seqs_in(path) == [0, 1] and not drops
    assert f"7 samples wait in {path}" in capsys.readouterr().err


def test_a_server_that_returns_gets_everything_in_order_and_the_disk_is_emptied(
    far_end, make_sender, drops, path, monkeypatch
):
    monkeypatch.setattr("memagent.delivery.sender.FIRST_DELAY_S", 0.05)
    far_end.answers = [(503, b"", {})] * 4
    sender = make_sender(far_end.url)
    for seq in range(60):
        sender.put(batch(seq))
    wait_until(lambda: len(far_end.batches()) == 60)
    wait_until(lambda: seqs_in(path) == [])
    sender.put(batch(60))
    sender.close(5)
    assert far_end.batches() == list(range(61)) and not drops and not path.exists()


def test_delivery_is_retried_once_at_exit(far_end, make_sender, path, monkeypatch):
    monkeypatch.setattr("memagent.delivery.sender.FIRST_DELAY_S", 3600.0)
    monkeypatch.setattr("memagent.delivery.sender.LAST_TRY_S", 10.0)
    far_end.answers = [(503, b"", {})]
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    wait_until(lambda: sender.is_failing)
    sender.close(10.0)
    assert far_end.batches() == [0] and not path.exists()


def test_a_slow_server_does_not_block_the_training(far_end, make_sender, path):
    far_end.delay_s = 3.0
    sender = make_sender(far_end.url)
    for seq in range(100):
        sender.put(batch(seq))
    assert far_end.batches() == []  # all were put while the server was still busy with the first
    sender.close(0.2)
    assert seqs_in(path) == list(range(100))


def test_without_a_server_the_run_is_only_recorded_in_its_file(make_sender, drops, path, capsys):
    sender = make_sender(None)
    for seq in range(3):
        sender.put(batch(seq))
    sender.close(5)
    assert seqs_in(path) == [0, 1, 2] and not drops and capsys.readouterr().err == ""


def test_an_unwritable_disk_is_reported_once_and_the_server_still_gets_everything(
    far_end, make_sender, path, capsys
):
    path.parent.write_text("a file where the folder should be")
    sender = make_sender(far_end.url)
    for seq in range(5):
        sender.put(batch(seq))
        sender.draft(b"")
    sender.close(5)
    assert far_end.batches() == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err.count("cannot write") == 1


def test_samples_that_are_only_in_memory_at_exit_are_counted(make_sender, drops, path, capsys):
    path.parent.write_text("a file where the folder should be")
    sender = make_sender(AWAY)
    sender.put(batch(0, samples=3))
    sender.put(batch(1, samples=4))
    sender.close(0.0)
    assert drops == {"not_delivered_at_exit": 7}
    assert "dropped 7 undelivered samples" in capsys.readouterr().err


def test_without_a_disk_memory_is_bounded(make_sender, path):
    path.parent.write_text("a file where the folder should be")
    sender = make_sender(AWAY)
    big = Envelope("batch", "r1", b"x" * 2**20, 1)
    puts = 0
    while sender.has_room():
        sender.put(big)
        puts += 1
    assert puts == 16


def test_a_hanging_write_does_not_block_the_training(make_sender, drops, monkeypatch):
    monkeypatch.setattr("memagent.delivery.sender.HANGING_DISK_S", 0.01)
    sender = make_sender(None)
    with held_by_another_thread(sender._changed):
        sender.put(batch(0, samples=2))
        sender.close(0.0)
    assert drops == {"disk_hangs": 2}


def test_the_last_message_waits_for_a_busy_disk(make_sender, path, drops, monkeypatch):
    monkeypatch.setattr("memagent.delivery.sender.HANGING_DISK_S", 0.0)
    monkeypatch.setattr("memagent.delivery.sender.LAST_WRITE_S", PATIENCE_S)
    sender = make_sender(None)
    end = threading.Thread(target=sender.put, args=(seal("r1", Finish(status="oom")),))
    with held_by_another_thread(sender._changed):
        sender.put(batch(0, samples=2))
        end.start()
    end.join()
    assert [kind for kind, _ in read_frames(path)] == ["start", "finish"]
    assert drops == {"disk_hangs": 2}


def test_an_internal_error_drops_one_envelope_and_is_counted(
    far_end, make_sender, drops, monkeypatch, caplog
):
    sender = make_sender(far_end.url)
    sender._guard.raise_errors = False
    monkeypatch.setattr(sender, "_on_reply", lambda reply: 1 / 0)
    sender.put(batch(0, samples=3))
    wait_until(lambda: drops == {"internal_error": 3})
    monkeypatch.undo()
    sender.put(batch(1))
    sender.close(5)
    assert far_end.batches() == [0, 1] and drops == {"internal_error": 3}
    assert sender._guard.errors == {"sender": 1} and "ZeroDivisionError" in caplog.text


def test_jumps_of_the_clock_change_nothing(far_end, make_sender, monkeypatch):
    far_end.answers = [(503, b"", {})]
    hours = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 - 3600.0 * next(hours))
    sender = make_sender(far_end.url)
    sender.put(batch(0))
    wait_until(lambda: far_end.batches() == [0])


def test_the_token_is_only_in_the_header(make_sender, path, capsys):
    sender = make_sender(AWAY, token="hush-hush")
    sender.put(batch(0))
    wait_until(lambda: sender.is_failing)
    sender.close(0.1)
    assert "hush-hush" not in capsys.readouterr().err
    assert b"hush-hush" not in path.read_bytes()
    assert "hush-hush" not in repr(sender) + repr(sender._file) + repr(
        HttpTransport(AWAY, "hush-hush")
    )


def seqs_in(path) -> list[int]:
    return [decode(body, Batch).seq for kind, body in read_frames(path) if kind == "batch"]


@contextmanager
def held_by_another_thread(lock) -> Iterator[None]:
    is_held, release = threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        release.set()
        thread.join()
