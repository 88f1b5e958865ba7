"""A real server on loopback as `memagent serve` starts it: nothing without a token."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.live_server import LiveServer

PROTECTED = {"MEMAGENT_OPEN": "0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a new database and its defaults."""
    folder = tmp_path_factory.mktemp("loopback")
    server = LiveServer.start(folder, "127.0.0.1:0", ("--role", "web"), PROTECTED)
    yield server
    server.kill()


@contextlib.contextmanager
def forwarder(target):
    """Forward a TCP connection byte for byte, as `ssh -L` and socat do; yield the address."""

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def run():
        near, _ = listener.accept()
        with near, socket.create_connection(target) as far:
            back = threading.Thread(target=pump, args=(far, near))
            back.start()
            pump(near, far)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield listener.getsockname()
        thread.join()


def ask(address, line, host):
    head = f"{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(head.encode())
        return int(connection.makefile("rb").readline().split()[1])


def test_without_a_token_a_loopback_server_serves_nothing(server):
    assert server.get("/api/v1/runs").status == 401
    assert server.post("/api/v1/runs", {"run_id": "r"}).status == 401
    assert server.get("/metrics").status == 401
    page = server.get("/", accept="text/html")
    assert (page.status, page.headers["Location"]) == (303, "/login?next=%2F")
    assert server.get("/healthz").status == 200


@pytest.mark.parametrize("line", ["GET /api/v1/runs", "POST /api/v1/runs", "GET /settings/tokens"])
def test_a_forwarder_that_leaves_no_mark_opens_nothing(server, line):
    host = urlsplit(server.url).netloc
    with forwarder((urlsplit(server.url).hostname, urlsplit(server.url).port)) as address:
        assert ask(address, line, host) == 401


def test_no_log_and_no_pipe_gets_a_link_or_a_token(start_server, memagent, tmp_path):
    server = start_server("--role", "web", environ=PROTECTED)
    address = server.url.removeprefix("http://")
    done = memagent("token", "link", "--listen", address, "/runs/r")
    link = done.stdout.strip()
    assert link.startswith(f"{server.url}/login?code=") and link.endswith("&next=/runs/r")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with pytest.raises(urllib.error.HTTPError, match="404"):
        browser.open(link)  # logged in; there is no such run
    with browser.open(f"{server.url}/settings/tokens") as page:
        assert "admin" in page.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(link)
    stop = server.process
    stop.terminate()
    printed = stop.stdout.read()
    assert "memagent token link" in printed and "code=" not in printed
    stop.wait(60)
    (file,) = (tmp_path / "server/memagent").glob("local_token_*")
    assert file.stat().st_mode & 0o777 == 0o600
    secrets = [link.partition("code=")[2], *re.findall(r"mag_[\w-]+", file.read_text())]
    assert len(secrets) == 3 and not any(text in server.errors for text in secrets)


def test_a_terminal_gets_a_link_that_logs_in_once(tmp_path):
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MEMAGENT_")}
    master, slave = pty.openpty()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "memagent", "serve", "--role", "web", "--listen", "127.0.0.1:0"],
            env={**environ, "XDG_DATA_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
            stdout=slave,
            stderr=log,
        )
    os.close(slave)
    try:
        with os.fdopen(master) as terminal:
            link = next(word for line in terminal for word in line.split() if "code=" in word)
            statuses = []
            for _ in range(2):
                browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
                try:
                    statuses.append(browser.open(link).status)
                except urllib.error.HTTPError as refused:
                    statuses.append(refused.code)
    finally:
        process.terminate()
        process.wait(60)
    assert statuses == [200, 401]
    assert "code=" not in (tmp_path / "log").read_text()


def test_open_access_is_a_setting(start_server, tmp_path):
    """Also over a database with a server's own tokens, but not with an administrator's."""
    for is_open, status in (("0", 401), ("1", 200)):
        server = start_server("--role", "web", environ={"MEMAGENT_OPEN": is_open})
        assert server.get("/api/v1/runs").status == status
        server.stop()


def test_a_link_needs_a_server_with_its_own_tokens(memagent):
    done = memagent("token", "link")
    assert done.returncode == 1 and "start `memagent serve` there" in done.stderr
