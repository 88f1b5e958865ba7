"""The client of the API against servers that drip, flood and bomb: time and memory have bounds."""

from __future__ import annotations

import gzip
import logging
import threading
import time
import tracemalloc
import zlib

import pytest

from memagent.delivery.api_client import MAX_ANSWER_BYTES, ApiClient
from memagent.errors import DeliveryError
from tests.scripted_server import DRIP_S, ScriptedServer, drip, read_request, response

ANSWER = response(b'{"runs": []}')
TIMEOUT_S = 0.5
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def client_of():
    """client_of(script): a client of a server that follows the script."""
    opened = []

    def client_of(script):
        server = ScriptedServer(script)
        client = ApiClient(server.url)
        client.far_end = server
        opened.extend((client, server))
        return client

    yield client_of
    for item in opened:
        item.close()


def drip_status(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 ")
    drip(connection, b"OK", b"\r\nContent-Length: 2\r\n\r\n{}")


def drip_headers(connection):
    read_request(connection)
    connection.sendall(HEAD)
    drip(connection, b"X: y\r\n", b"Content-Length: 2\r\n\r\n{}")


def drip_body(connection):
    read_request(connection)
    connection.sendall(HEAD + b"\r\n")
    drip(connection, b" ", b"{}")


def drip_length(connection):
    read_request(connection)
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    drip(connection, b"0", b"\r\n\r\n")


@pytest.mark.parametrize("script", [drip_status, drip_headers, drip_body, drip_length])
def test_an_answer_that_drips_is_cut_off(client_of, script):
    with pytest.raises(DeliveryError, match="no answer in time"):
        client_of(script).request("/", timeout_s=TIMEOUT_S)


def test_a_server_that_reads_a_byte_at_a_time_is_cut_off(client_of):
    def read_slowly(connection):
        for _ in range(300):
            connection.recv(65_536)
            time.sleep(DRIP_S)

    with pytest.raises(DeliveryError, match="no answer in time"):
        client_of(read_slowly).request("/", method="POST", body=bytes(2**26), timeout_s=TIMEOUT_S)


def test_a_kept_connection_has_a_deadline_for_each_request(client_of):
    def answer_then_drip(connection):
        for _ in range(3):
            read_request(connection)
            connection.sendall(ANSWER)
        drip_body(connection)

    client = client_of(answer_then_drip)
    for _ in range(3):
        assert client.request("/", timeout_s=TIMEOUT_S).fields() == {"runs": []}
    with pytest.raises(DeliveryError, match="no answer in time"):
        client.request("/", timeout_s=TIMEOUT_S)
    assert client.far_end.accepted == 1


def bomb(pack):
    return pack(bytes(100 * 2**20))


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (bytes(MAX_ANSWER_BYTES + 1), ()),
        (bomb(gzip.compress), ("Content-Encoding: gzip",)),
        (bomb(zlib.compress), ("Content-Encoding: deflate",)),
    ],
    ids=["plain", "gzip", "deflate"],
)
def test_an_answer_that_is_too_large_stays_out_of_memory(client_of, content, headers):
    def answer(connection):
        read_request(connection)
        connection.sendall(response(content, "Connection: close", *headers))

    client = client_of(answer)
    with pytest.raises(DeliveryError, match=r"more than 1\.0 MiB"):
        client.request("/")  # imports what it needs
    tracemalloc.start()
    with pytest.raises(DeliveryError, match=r"more than 1\.0 MiB"):
        client.request("/")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * MAX_ANSWER_BYTES


def test_an_answer_without_an_end_is_cut_off(client_of):
    def flood(connection):
        read_request(connection)
        connection.sendall(HEAD + b"\r\n")
        for _ in range(1_000):
            connection.sendall(bytes(65_536))

    with pytest.raises(DeliveryError, match=r"more than 1\.0 MiB"):
        client_of(flood).request("/")


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"runs": []}', ()),
        (gzip.compress(b'{"runs": []}'), ("Content-Encoding: gzip",)),
        (zlib.compress(b'{"runs": []}'), ("Content-Encoding: deflate",)),
    ],
    ids=["plain", "gzip", "deflate"],
)
def test_it_reads_answers_that_a_proxy_has_compressed(client_of, content, headers):
    def answer(connection):
        request = read_request(connection)
        assert b"accept-encoding: identity" in request.lower()
        connection.sendall(response(content, *headers))

    assert client_of(answer).request("/").fields() == {"runs": []}


def test_a_refused_download_is_bounded_too(client_of):
    def refuse(connection):
        read_request(connection)
        connection.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
        for _ in range(1_000):
            connection.sendall(bytes(65_536))

    with pytest.raises(DeliveryError, match=r"more than 1\.0 MiB"):
        list(client_of(refuse).download("/"))


def answer_twice(connection):
    for _ in range(2):  # on one connection: one that is closed may look open to the second request
        read_request(connection)
        connection.sendall(ANSWER)


@pytest.mark.parametrize(("thread_name", "is_logged"), [("memagent-sender", False), ("own", True)])
def test_only_requests_of_the_script_are_logged(
    caplog, client_of, monkeypatch, thread_name, is_logged
):
    # libraries of other tests set the level of this logger, or disable it
    logger = logging.getLogger("urllib3.connectionpool")
    monkeypatch.setattr(logger, "disabled", False)
    client = client_of(answer_twice)
    client.request("/api/v1/runs")  # creates the pool
    caplog.clear()
    caplog.set_level(logging.DEBUG, logger=logger.name)
    thread = threading.Thread(target=client.request, args=("/api/v1/runs",), name=thread_name)
    thread.start()
    thread.join()
    records = [record for record in caplog.records if record.name.startswith("urllib3")]
    assert bool(records) == is_logged


def test_a_request_starts_no_thread_that_the_script_could_see(live_server):
    client = ApiClient(live_server.url)
    before = threading.enumerate()
    assert client.request("/healthz").status == 200
    assert set(threading.enumerate()) <= set(before)
    client.close()
