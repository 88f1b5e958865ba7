"""Slow clients over real connections: whatever they leave undone, other requests are answered."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import urllib3

from memagent_server.http import asgi
from memagent_server.supervisor import BLOCKING_THREADS
from memagent_server.web.downloads import MAX_DOWNLOADS
from tests.waiting import PATIENCE_S, wait_until

STALLED = 4 * BLOCKING_THREADS
HEAD = "{} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
ATTEMPTS = 10

short_deadlines = pytest.mark.xdist_group("short-deadlines")


@pytest.fixture
def server(short_deadline_server):
    assert short_deadline_server.post("/api/v1/runs", {"run_id": "r"}).status in (200, 201)
    return short_deadline_server


@pytest.fixture
def connect(server):
    """Return a function that opens connections and sends `data` over each of them."""
    with contextlib.ExitStack() as stack:

        def connect(data, count=1):
            host, port = server.url.removeprefix("http://").split(":")
            opened = []
            for _ in range(count):
                connection = stack.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(PATIENCE_S)
                connection.connect((host, int(port)))
                connection.sendall(data)
                opened.append(connection)
            return opened

        yield connect


def assert_it_answers(server):
    def request(method, path, **options):
        return urllib3.request(
            method, server.url + path, timeout=PATIENCE_S, retries=False, **options
        ).status

    assert request("GET", "/healthz") == 200
    assert request("POST", "/api/v1/runs/r/batches", json={"seq": 0}) == 200


def stalled_while_it_answers(server, stall, is_stalled):
    """Return connections that were still stalled after the server had answered others.

    On a busy machine their deadline may pass first: then others stall.
    """
    for _ in range(ATTEMPTS):
        connections = stall()
        assert_it_answers(server)
        if all(is_stalled(connection) for connection in connections):
            return connections
    raise AssertionError("it answers only after the deadline")


def has_no_answer(connection):
    return not select.select([connection], [], [], 0)[0]


def read_to_end(connection):
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@short_deadlines
@pytest.mark.parametrize(
    ("target", "statuses"), [("POST /login", (b"303",)), ("POST /api/v1/runs/r/batches", (b"408",))]
)
def test_bodies_that_never_end_hold_no_thread_and_have_a_deadline(
    server, connect, target, statuses
):
    head = HEAD.format(target).encode()

    def stall():
        return [*connect(head, STALLED // 2), *connect(head + b"{" * 500, STALLED // 2)]

    for connection in stalled_while_it_answers(server, stall, has_no_answer):
        answer, _, _ = read_to_end(connection).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1") and b"connection: close" in answer
        assert answer.split()[1] in statuses


@short_deadlines
def test_idle_connections_and_unfinished_heads_are_closed(connect):
    request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    opened = [connect(data)[0] for data in (b"", request[:20], request)]
    answers = [read_to_end(connection) for connection in opened]
    assert answers[:2] == [b"", b""]
    assert answers[2].startswith(b"HTTP/1.1 200")


def enter_long_run(server):
    steps = [*range(9_000)]
    columns = {"step": steps, **{f"c{name}": [0.1] * len(steps) for name in range(10)}}
    for seq in range(8):
        batch = {"seq": seq, "rank": 1, "chunks": [{"stream": "host", "columns": columns}]}
        assert server.post("/api/v1/runs/r/batches", batch).status == 200


EXPORT = b"GET /api/v1/runs/r/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@short_deadlines
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="a deadline of Linux")
def test_readers_that_do_not_read_hold_no_thread_and_have_a_deadline(server, connect):
    enter_long_run(server)

    def has_the_server(connection):
        (web,) = (one for one in children_of(server) if "spawn_main" in " ".join(one.cmdline()))
        return connection.getsockname() in {one.raddr for one in web.net_connections("tcp")}

    unread = stalled_while_it_answers(
        server, lambda: connect(EXPORT, MAX_DOWNLOADS), has_the_server
    )
    wait_until(lambda: not any(map(has_the_server, unread)), "it closes the connections")


@short_deadlines
def test_hundreds_of_readers_that_do_not_read_leave_it_free(server, connect):
    enter_long_run(server)
    opened = []
    for _ in range(10):
        opened += connect(EXPORT, 50)
        assert_it_answers(server)
    answers = Counter(connection.recv(12) for connection in opened)
    assert set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"} and answers[b"HTTP/1.1 503"] > 250
    exports = []

    def is_exported():
        exports.append(server.get("/api/v1/runs/r/export"))
        return exports[-1].status != 503

    wait_until(is_exported, "a place becomes free")
    assert len(exports[-1].body.splitlines()) == 8 * 9_000 + 1


def children_of(server):
    return psutil.Process(server.process.pid).children()


@short_deadlines
def test_a_large_body_is_refused_unread(connect):
    head = HEAD.format("POST /api/v1/runs").replace("1000", str(asgi.MAX_SENT_BYTES + 1))
    (connection,) = connect(head.encode())
    head, _, _ = read_to_end(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413") and b"connection: close" in head


def call(app, parts, headers=(), path="/"):
    """Return the messages with which an ASGI application answers a body of `parts`."""
    return run(answer(app, parts, headers, path))


async def answer(app, parts, headers=(), path="/"):
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(b"transfer-encoding", b"chunked"), *headers],
    }
    messages, rest = [], list(parts)

    async def receive():
        part = rest.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(rest)}

    async def send(message):
        messages.append(message)

    await app(scope, receive, send)
    return messages


def run(coroutine):
    """Run it on a thread: another test of this process may have left an event loop on this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def background(app):
    await asyncio.Event().wait()


def make_app(wsgi, may_send=lambda environ: True):
    return asgi.AsgiApp(wsgi, may_send, 1, background)


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


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"x"] * asgi.MAX_SMALL_PARTS, 200),
        ([b"x"] * 2 * asgi.MAX_SMALL_PARTS, 408),
        ([b"x" * 2 * asgi.MIN_PART_BYTES] * 2 * asgi.MAX_SMALL_PARTS, 200),
        ([b"x" * 99] * 20 * asgi.MAX_SMALL_PARTS, 408),
    ],
    ids=["few", "many", "of packets", "large and fragmented"],
)
def test_a_body_in_tiny_parts_is_not_read_to_its_end(parts, status):
    head, _ = call(make_app(echo), parts)
    assert head["status"] == status
    assert ((b"connection", b"close") in head["headers"]) == (status == 408)


def test_an_underscore_does_not_pass_for_a_dash():
    headers = [(b"x-forwarded-for", b"a"), (b"x_forwarded_for", b"b"), (b"x-forwarded-for", b"c")]

    def forwarded(environ, start_response):
        start_response("200 OK", [])
        yield environ["HTTP_X_FORWARDED_FOR"].encode()

    messages = call(make_app(forwarded), [b""], headers)
    assert b"".join(message.get("body", b"") for message in messages) == b"a,c"


def test_a_request_is_answered_while_a_download_has_nothing_to_send():
    answered = threading.Event()

    def serve(environ, start_response):
        if environ["PATH_INFO"] == "/batch":
            return echo(environ, start_response)
        start_response("200 OK", [])
        return iter([b"first", b"last"] if answered.wait(PATIENCE_S) else [])

    app = make_app(serve)

    async def both():
        download = asyncio.ensure_future(answer(app, [b""], path="/export"))
        await answer(app, [b""], path="/batch")
        answered.set()
        return await download

    assert [message.get("body") for message in run(both())][1:] == [b"firstlast"]


@pytest.mark.parametrize("gone_at", ["http.response.start", "http.response.body"])
def test_a_download_is_closed_if_its_client_is_gone(gone_at):
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
        if message["type"] == gone_at:
            raise ConnectionError

    async def receive():
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    peers = {"server": ("x", 1), "client": ("x", 1), "http_version": "1.1", "scheme": "http"}
    with pytest.raises(ConnectionError):
        run(app({**scope, **peers}, receive, send))
    assert closed == [True]
