"""Large bodies over real connections: they are read after their token has been checked."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from memagent_server.app import create_app, create_asgi_app
from memagent_server.http import asgi
from memagent_server.http.credentials import issue_token
from memagent_server.http.rate_limits import BURST_S
from memagent_server.store.engine import Database
from tests.live_server import LiveServer
from tests.server.http.test_asgi import background, call, children_of, make_app, read_to_end
from tests.waiting import PATIENCE_S

ADMIN = "an admin token for tests"
QUOTA = 20_000
"""Bytes a second."""
HEAD = "{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n{}\r\n\r\n"
DECLARED = f"Content-Length: {asgi.MAX_SENT_BYTES}"
BATCHES = "POST /api/v1/runs/r/batches"
ATTEMPTS = 200


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
)
def server(request, tmp_path_factory, make_settings):
    """A server that requires tokens; `server.token` is an agent's, with the run `r`."""
    folder = tmp_path_factory.mktemp("large-bodies")
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{folder}/memagent.db"
        if request.param == "postgresql":
            url = stack.enter_context(request.getfixturevalue("postgres_cluster").database())
        environ = {"MEMAGENT_ADMIN_TOKEN": ADMIN, "MEMAGENT_DATABASE_URL": url}
        server = LiveServer.start(folder, "127.0.0.1:0", ("--role", "web"), environ)
        stack.callback(server.kill)
        database = Database(url)
        server.token = agent_token(database, make_settings(url))
        database.close()
        agent = {"authorization": f"Bearer {server.token}"}
        assert server.post("/api/v1/runs", {"run_id": "r"}, **agent).status == 201
        yield server


def agent_token(database, settings):
    with database.write() as session:
        token, _ = issue_token(session, settings, name="agent", scope="ingest", now=1.0)
    return token


@contextlib.contextmanager
def connected(server, address="127.0.0.1"):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S, (address, 0)) as connection:
        yield connection


def head(token, target=BATCHES, length=DECLARED):
    return HEAD.format(target, token, length).encode()


def answer(connection):
    """Return the head and the body of one answer of a connection that stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


@pytest.mark.parametrize("length", [DECLARED, "Transfer-Encoding: chunked"])
def test_an_invalid_token_is_refused_before_a_large_body_is_read(server, length):
    chunk = b"%x\r\n%b\r\n" % (asgi.SMALL_BODY_BYTES + 1, b" " * (asgi.SMALL_BODY_BYTES + 1))
    with connected(server) as connection:
        connection.sendall(head("guess", length=length) + (b"" if length == DECLARED else chunk))
        refused, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 401") and b"connection: close" in refused
    assert b"A token is required" in body


@pytest.mark.parametrize(
    ("target", "status"),
    [("POST /api/v1/runs/r/none", b"403"), ("DELETE /api/v1/runs/r", b"403"), (BATCHES, b"200")],
)
def test_a_valid_token_is_asked_for_its_large_body_where_the_route_reads_one(
    server, target, status
):
    body = b'{"seq": 0}'.ljust(asgi.SMALL_BODY_BYTES + 1)
    with connected(server) as connection:
        connection.sendall(head(server.token, target, f"Content-Length: {len(body)}"))
        if status == b"200":
            connection.sendall(body)
        got, _ = answer(connection)
        assert got.split()[1] == status
        assert (b"connection: close" in got) == (status != b"200")
        if status == b"200":
            connection.sendall(head(server.token, length="Content-Length: 10") + b'{"seq": 1}')
            assert answer(connection)[0].split()[1] == b"200", "the connection is kept"


def test_guesses_with_large_bodies_count_like_all_others(server):
    statuses = Counter()
    for number in range(25):
        with connected(server, "127.0.4.1") as connection:
            connection.sendall(head(f"guess {number}"))
            statuses[read_to_end(connection).split()[1]] += 1
    assert statuses == {b"401": 20, b"429": 5}
    with connected(server, "127.0.4.1") as connection:
        body = b'{"seq": 0}'.ljust(asgi.SMALL_BODY_BYTES + 1)
        connection.sendall(head(server.token, length=f"Content-Length: {len(body)}") + body)
        assert answer(connection)[0].split()[1] == b"200", "known to be valid"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_invalid_tokens_with_large_bodies_take_no_memory(server):
    (web,) = (one for one in children_of(server) if "spawn_main" in " ".join(one.cmdline()))

    def peak_bytes():
        status = Path(f"/proc/{web.pid}/status").read_text()
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])

    before = peak_bytes()
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(connected(server, f"127.0.5.{number + 1}"))
            for number in range(ATTEMPTS)
        ]
        for connection in opened:
            connection.sendall(head("guess"))
            connection.setblocking(False)
        for connection in opened:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                connection.send(bytes(asgi.MAX_SENT_BYTES))
        for connection in opened:
            connection.settimeout(PATIENCE_S)
            assert read_to_end(connection)[:12] in (b"HTTP/1.1 401", b"")
    assert peak_bytes() - before < 2 * asgi.MAX_SENT_BYTES


def test_a_body_that_may_not_be_sent_is_not_awaited():
    calls = []

    def refuse(environ, start_response):
        calls.append(environ)
        start_response("401 Unauthorized", [("Content-Length", "0")])
        return [b""]

    declared = [(b"content-length", b"%d" % asgi.MAX_SENT_BYTES)]
    app = make_app(refuse, lambda environ: False)
    response, _ = call(app, [], declared)  # without a part, reading would fail
    assert (response["status"], len(calls)) == (401, 1)
    assert (b"connection", b"close") in response["headers"]


def post_large(app, token, *headers):
    body = b'{"run_id": "r"}'.ljust(6 * QUOTA)
    assert asgi.SMALL_BODY_BYTES < len(body) < BURST_S * QUOTA < 2 * len(body)
    length = (b"content-length", b"%d" % len(body))
    sent = [(b"authorization", b"Bearer " + token.encode()), length, *headers]
    return call(create_asgi_app(app, 1, background), [body], sent, "/api/v1/runs")[0]["status"]


def test_a_large_body_passes_through_the_application_once(sqlite_database, make_settings):
    settings = make_settings(sqlite_database.url, quota_bytes=QUOTA)
    token = agent_token(sqlite_database, settings)
    app = create_app(settings, sqlite_database)
    requests = []
    app.before_request(lambda: requests.append(1))
    assert post_large(app, token) == 201, "a second charge would exceed its quota"
    assert len(requests) == 1


def test_a_guess_with_a_large_body_counts_for_the_client_behind_a_proxy(
    sqlite_database, make_settings
):
    settings = make_settings(sqlite_database.url, admin_token=ADMIN, trusted_proxies=1)
    app = create_app(settings, sqlite_database)
    guesser, agent = ((b"x-forwarded-for", address) for address in (b"10.0.0.1", b"10.0.0.2"))
    statuses = [post_large(app, f"guess {number}", guesser) for number in range(25)]
    assert Counter(statuses) == {401: 20, 429: 5}
    assert post_large(app, ADMIN, guesser) == 429
    assert post_large(app, ADMIN, agent) == 201
