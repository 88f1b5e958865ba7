"""Slow clients over real connections: whatever they leave undone, other requests are answered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import urllib3

from memagent_server.http import asgi
from memagent_server.supervisor import BLOCKING_THREADS

PATIENCE_S = 15.0
"""Less than any deadline of the server: an answer within it waited for none."""
STALLED = 4 * BLOCKING_THREADS
HEAD = "{} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture
def server(start_server):
    server = start_server("--role", "web")
    assert server.post("/api/v1/runs", {"run_id": "r"}).status == 201
    return server


@pytest.fixture
def connect():
    """Return a function that opens connections to a server and sends each of them `data`."""
    with contextlib.ExitStack() as stack:

        def connect(server, data, count=1):
            host, port = server.url.removeprefix("http://").split(":")
            opened = []
            for _ in range(count):
                connection = stack.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(2 * asgi.BODY_TIMEOUT_S)
                connection.connect((host, int(port)))
                connection.sendall(data)
                opened.append(connection)
            return opened

        yield connect


def assert_it_answers(server, seq):
    def request(method, path, **options):
        return urllib3.request(
            method, server.url + path, timeout=PATIENCE_S, retries=False, **options
        ).status

    assert request("GET", "/healthz") == 200
    batch = {"seq": seq, "chunks": [{"stream": "host", "columns": {"step": [seq]}}]}
    assert request("POST", "/api/v1/runs/r/batches", json=batch) == 200


def read_to_end(connection):
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "statuses"),
    [("POST /login", (b"400", b"401", b"429")), ("POST /api/v1/runs/r/batches", (b"408",))],
)
def test_bodies_that_never_end_hold_no_thread_and_have_a_deadline(
    server, connect, target, statuses
):
    head_only = connect(server, HEAD.format(target).encode(), STALLED // 2)
    half_a_body = connect(server, HEAD.format(target).encode() + b"{" * 500, STALLED // 2)
    assert_it_answers(server, 0)
    for connection in (*head_only, *half_a_body):
        head, _, _ = read_to_end(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1") and b"connection: close" in head
    assert head.split()[1] in statuses
    assert_it_answers(server, 1)


@pytest.mark.slow
def test_idle_connections_and_unfinished_heads_are_closed(server, connect):
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    opened = [connect(server, data)[0] for data in (b"", request[:20], request)]
    answers = [read_to_end(connection) for connection in opened]
    assert answers[:2] == [b"", b""]
    assert answers[2].startswith(b"HTTP/1.1 200")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a deadline of Linux")
def test_readers_that_do_not_read_hold_no_thread_and_have_a_deadline(server, connect):
    steps = [*range(9_000)]
    for seq in range(8):
        columns = {"step": steps, **{f"c{name}": [0.1] * len(steps) for name in range(10)}}
        batch = {"seq": seq, "rank": 1, "chunks": [{"stream": "host", "columns": columns}]}
        assert server.post("/api/v1/runs/r/batches", batch).status == 200
    request = b"GET /api/v1/runs/r/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    unread = {one.getsockname() for one in connect(server, request, BLOCKING_THREADS + 2)}
    assert_it_answers(server, 0)
    (web,) = (one for one in children_of(server) if "spawn_main" in " ".join(one.cmdline()))
    deadline = time.monotonic() + 120
    while any(one.raddr in unread for one in web.net_connections("tcp")):
        assert time.monotonic() < deadline, "it keeps the connections"
        time.sleep(0.5)
    assert_it_answers(server, 1)


def children_of(server):
    return psutil.Process(server.process.pid).children()


def test_a_large_body_is_refused_unread(server, connect):
    head = HEAD.format("POST /api/v1/runs").replace("1000", str(asgi.MAX_SENT_BYTES + 1))
    (connection,) = connect(server, head.encode())
    head, _, _ = read_to_end(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413") and b"connection: close" in head


def call(app, parts, headers=()):
    """Return the messages with which an ASGI application answers a body of `parts`."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(b"transfer-encoding", b"chunked"), *headers],
    }
    sent, rest = [], list(parts)

    async def receive():
        part = rest.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(rest)}

    async def send(message):
        sent.append(message)

    run(app(scope, receive, send))
    return sent


def run(coroutine):
    """Run it on a thread: another test of this process may have left an event loop on this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


def make_app(wsgi):
    async def background(app):
        await asyncio.Event().wait()

    return asgi.AsgiApp(wsgi, 1, background)


def echo(environ, start_response):
    try:
        status, body = "200 OK", environ["wsgi.input"].read()
    except OSError:
        status, body = "408 Request Timeout", b""
    start_response(status, [("Content-Length", str(len(body)))])
    return [body]


def test_a_body_in_parts_reaches_the_application_whole():
    head, body = call(make_app(echo), [b"a" * 70_000, b"", b"b"])
    assert (head["status"], body["body"]) == (200, b"a" * 70_000 + b"b")


def test_an_error_of_the_application_reaches_the_server():
    def fail(environ, start_response):
        raise ZeroDivisionError

    app = make_app(fail)
    for _ in range(2):  # the thread lives on
        with pytest.raises(ZeroDivisionError):
            call(app, [b""])


def test_a_body_is_whole_once_its_declared_length_has_arrived():
    messages = call(make_app(echo), [b"ab", b"never read"], [(b"content-length", b"2")])
    assert messages[1]["body"] == b"ab"


def test_with_many_bodies_in_memory_it_reads_short_ones_only(monkeypatch):
    monkeypatch.setattr(asgi, "MAX_BUFFERED_BYTES", 0)
    small, large = [b"x" * 1_000] * 2, [b"x" * asgi.SMALL_BODY_BYTES] * 3
    app = make_app(echo)
    assert [call(app, parts)[0]["status"] for parts in (small, large, small)] == [200, 408, 200]


def test_an_underscore_does_not_pass_for_a_dash():
    headers = [(b"x-forwarded-for", b"a"), (b"x_forwarded_for", b"b"), (b"x-forwarded-for", b"c")]

    def forwarded(environ, start_response):
        start_response("200 OK", [])
        yield environ["HTTP_X_FORWARDED_FOR"].encode()

    messages = call(make_app(forwarded), [b""], headers)
    assert b"".join(message.get("body", b"") for message in messages) == b"a,c"


def test_a_download_is_closed_if_its_client_is_gone():
    closed = []

    class Endless:
        def __iter__(self):
            return iter(lambda: b"x" * 100_000, b"")

        def close(self):
            closed.append(True)

    def download(environ, start_response):
        start_response("200 OK", [])
        return Endless()

    app = make_app(download)

    async def send(message):
        if message.get("body"):
            raise ConnectionError

    async def receive():
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    peers = {"server": ("x", 1), "client": ("x", 1), "http_version": "1.1", "scheme": "http"}
    with pytest.raises(ConnectionError):
        run(app({**scope, **peers}, receive, send))
    assert closed == [True]
