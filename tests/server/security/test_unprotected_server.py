"""Without tokens, the server serves its own machine only."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.live_server import LiveServer


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.5", "2001:db8::1", ""])
def test_remote_addresses_are_refused_with_any_host(sqlite_client, address):
    """gunicorn may listen on any address."""
    response = sqlite_client.get(
        "/api/v1/runs", environ_base={"REMOTE_ADDR": address}, headers={"Host": "localhost"}
    )
    assert (
        response.status_code == 403
        and "Create a token first" in response.get_json(force=True)["detail"]
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real server without tokens."""
    server = LiveServer.start(
        tmp_path_factory.mktemp("unprotected"), "127.0.0.1:0", ("--role", "web"), {}
    )
    yield server
    server.kill()


def ask(server, *headers, version="HTTP/1.1", line="GET /api/v1/runs", body=b""):
    """The status of a request with these header lines."""
    authority = urlsplit(server.url).netloc
    lines = [f"{line} {version}", f"Host: {authority}", "Connection: close", *headers, "", ""]
    with socket.create_connection(authority.split(":"), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded: for=203.0.113.9",
        "Via: 1.1 gateway",
        "X-Forwarded-For: 203.0.113.9",
        "x-forwarded-host: example.org",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Port: 443",
        "X-Forwarded-Server: gateway",
        "X-Real-IP: 203.0.113.9",
        "X-Client-IP: 203.0.113.9",
        "CF-Connecting-IP: 203.0.113.9",
        "CF-Ray: 1",
        "True-Client-IP: 203.0.113.9",
        "Fly-Client-IP: 203.0.113.9",
        "Via:",
    ],
)
def test_requests_through_a_proxy_are_refused(server, header):
    """A proxy is on loopback and may send any Host: nginx sends 127.0.0.1:8420 by default."""
    assert ask(server) == 200
    assert ask(server, header) == 403


def test_a_proxy_without_any_header_is_refused_by_its_protocol(server):
    """nginx's `proxy_pass` alone adds no header, and speaks HTTP/1.0."""
    create = ("Content-Type: application/json", "Content-Length: 15")
    for line, headers, body in (
        ("GET /api/v1/runs", (), b""),
        ("GET /settings/tokens", (), b""),
        ("POST /api/v1/runs", create, b'{"run_id": "r"}'),
    ):
        assert ask(server, *headers, version="HTTP/1.0", line=line, body=body) == 403
        assert ask(server, *headers, line=line, body=body) in (200, 201)
    assert ask(server, version="HTTP/1.0", line="GET /healthz") == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_served(sqlite_client, address):
    assert (
        sqlite_client.get("/api/v1/runs", environ_base={"REMOTE_ADDR": address}).status_code == 200
    )
