"""Without tokens, the server serves its own machine only."""

from __future__ import annotations

import pytest


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


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded"])
def test_requests_through_a_proxy_are_refused(sqlite_client, header):
    """A proxy is on loopback and may send any Host: nginx sends 127.0.0.1:8420 by default."""
    response = sqlite_client.get(
        "/api/v1/runs", headers={header: "for=203.0.113.9", "Host": "127.0.0.1:8420"}
    )
    assert response.status_code == 403


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_served(sqlite_client, address):
    assert (
        sqlite_client.get("/api/v1/runs", environ_base={"REMOTE_ADDR": address}).status_code == 200
    )
