"""Without tokens the server is open to its own machine, and to nobody else by any way round."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.5", "2001:db8::1", ""])
def test_nobody_else_is_served_whatever_host_they_name(sqlite_client, address):
    """gunicorn may have been told to listen anywhere."""
    answer = sqlite_client.get(
        "/api/v1/runs", environ_base={"REMOTE_ADDR": address}, headers={"Host": "localhost"}
    )
    assert (
        answer.status_code == 403
        and "Create a token first" in answer.get_json(force=True)["detail"]
    )


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded"])
def test_no_proxy_opens_it_to_the_world(sqlite_client, header):
    """A proxy is on loopback, and names Host as it likes: nginx sends 127.0.0.1:8420 by default."""
    answer = sqlite_client.get(
        "/api/v1/runs", headers={header: "for=203.0.113.9", "Host": "127.0.0.1:8420"}
    )
    assert answer.status_code == 403


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_its_own_machine_is_served(sqlite_client, address):
    assert (
        sqlite_client.get("/api/v1/runs", environ_base={"REMOTE_ADDR": address}).status_code == 200
    )
