"""Addresses that keep guessing tokens are blocked."""

from __future__ import annotations

import pytest

from memagent_server.app import create_app
from memagent_server.http.login_throttle import (
    EXTENSION,
    MAX_FAILURES,
    WINDOW_S,
    LoginThrottle,
    open_tables,
)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make_client(make_settings, sqlite_database, clock):
    """make_client(**settings): a client of an app with the admin token `sesame` and the clock
    fixture.
    """

    def make(**settings):
        app = create_app(
            make_settings(sqlite_database.url, admin_token="sesame", **settings), sqlite_database
        )
        app.extensions[EXTENSION] = LoginThrottle(*open_tables("secret"), clock)
        return app.test_client()

    return make


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def guess(client, times=MAX_FAILURES, **options):
    return [
        client.get("/api/v1/runs", headers=bearer(f"guess {n}"), **options).status_code
        for n in range(times)
    ]


def test_an_address_that_guesses_is_blocked(make_client, clock):
    client = make_client()
    assert guess(client, MAX_FAILURES + 1) == [401] * MAX_FAILURES + [429]
    refused = client.get("/api/v1/runs", headers=bearer("sesame"))
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert client.post("/login", data={"token": "sesame"}).status_code == 429
    clock.now += WINDOW_S
    assert client.post("/login", data={"token": "sesame"}).status_code == 303


def test_failed_logins_count(make_client):
    client = make_client()
    assert {
        client.post("/login", data={"token": "guess"}).status_code for _ in range(MAX_FAILURES)
    } == {401}
    assert client.post("/login", data={"token": "sesame"}).status_code == 429


def test_a_known_valid_token_is_still_accepted(make_client):
    """One script with an old token behind an office's address must not stop the office's agents."""
    client = make_client()
    assert client.get("/api/v1/runs", headers=bearer("sesame")).status_code == 200
    guess(client)
    assert client.get("/api/v1/runs", headers=bearer("guess 1")).status_code == 429
    assert client.get("/api/v1/runs", headers=bearer("sesame")).status_code == 200


def test_an_address_is_blocked_and_for_ipv6_its_network(make_client):
    client = make_client()
    for guesser, neighbour, stranger in (
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1"),
    ):
        guess(client, environ_base={"REMOTE_ADDR": guesser})
        assert guess(client, 1, environ_base={"REMOTE_ADDR": neighbour}) == [429]
        assert guess(client, 1, environ_base={"REMOTE_ADDR": stranger}) == [401]


def test_a_forwarded_address_counts_only_from_a_trusted_proxy(make_client):
    for trusted, status in ((0, 429), (1, 401)):
        client = make_client(trusted_proxies=trusted)
        for n in range(MAX_FAILURES):
            client.get(
                "/api/v1/runs", headers={**bearer("guess"), "X-Forwarded-For": f"10.0.0.{n}"}
            )
        response = client.get(
            "/api/v1/runs", headers={**bearer("guess"), "X-Forwarded-For": "10.0.1.1"}
        )
        assert response.status_code == status


def test_slow_failures_are_forgiven(clock):
    throttle = LoginThrottle(*open_tables("secret"), clock)
    for _ in range(3 * MAX_FAILURES):
        throttle.add_failure("10.0.0.1")
        clock.now += WINDOW_S / MAX_FAILURES + 0.1
    assert throttle.wait_s("10.0.0.1") == 0
