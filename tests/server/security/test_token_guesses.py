"""Guessing tokens: 20 a minute from an address, by whichever path and however many at once."""

from __future__ import annotations

import http.client
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode, urlsplit

import pytest

from memagent_server.http.login_throttle import MAX_FAILURES, LoginThrottle, open_tables
from memagent_server.http.shared_counters import SETS, WAYS
from tests.live_server import LiveServer

ADMIN_TOKEN = "an admin token for tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Two web processes with an admin token. Each test comes from an address of its own."""
    server = LiveServer.start(
        tmp_path_factory.mktemp("guesses"),
        "127.0.0.1:0",
        ("--role", "web", "--workers", "2"),
        {"MEMAGENT_ADMIN_TOKEN": ADMIN_TOKEN},
    )
    yield server
    server.kill()


def ask(server, address, path, token, form=None):
    """The status of a request on a new connection from a loopback address."""
    connection = http.client.HTTPConnection(
        urlsplit(server.url).netloc, timeout=30, source_address=(address, 0)
    )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    body = urlencode(form) if form is not None else None
    connection.request("POST" if form is not None else "GET", path, body, headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


@pytest.mark.parametrize(
    ("number", "path"),
    list(enumerate(("/healthz", "/readyz", "/openapi.json", "/static/none", "/login"))),
)
def test_public_paths_do_not_vouch_for_a_token(server, number, path):
    address = f"127.0.1.{number + 1}"
    guesses = [f"guess {index}" for index in range(MAX_FAILURES + 5)]
    assert {ask(server, address, path, guess) for guess in guesses} <= {200, 404}
    statuses = Counter(ask(server, address, "/api/v1/runs", guess) for guess in guesses)
    assert statuses == {401: MAX_FAILURES, 429: 5}
    assert ask(server, address, "/healthz", "guess") == 200, "a probe behind the same address"


def test_guesses_at_the_same_time_count_one_after_the_other(server):
    with ThreadPoolExecutor(16) as pool:
        statuses = Counter(
            pool.map(
                lambda number: ask(server, "127.0.2.1", "/api/v1/runs", f"guess {number}"),
                range(4 * MAX_FAILURES),
            )
        )
    assert statuses == {401: MAX_FAILURES, 429: 3 * MAX_FAILURES}


def test_a_login_without_a_token_is_no_guess(server):
    forms = [{"other": "x"}] * (MAX_FAILURES + 5)
    assert {ask(server, "127.0.4.1", "/login", None, form) for form in forms} == {401}
    assert ask(server, "127.0.4.1", "/api/v1/runs", ADMIN_TOKEN) == 200


def test_nobody_is_blocked_at_an_open_server(tmp_path):
    server = LiveServer.start(tmp_path, "127.0.0.1:0", ("--role", "web"), {"MEMAGENT_OPEN": "1"})
    try:
        forms = [{"token": f"guess {number}"} for number in range(MAX_FAILURES + 5)]
        assert {ask(server, "127.0.0.1", "/login", None, form) for form in forms} == {303}
        assert ask(server, "127.0.0.1", "/api/v1/runs", "a token of an agent") == 200
    finally:
        server.kill()


def test_a_valid_header_does_not_exempt_the_login_form(server):
    assert ask(server, "127.0.3.1", "/api/v1/runs", ADMIN_TOKEN) == 200
    statuses = Counter(
        ask(server, "127.0.3.1", "/login", ADMIN_TOKEN, {"token": f"guess {number}"})
        for number in range(MAX_FAILURES + 5)
    )
    assert statuses == {401: MAX_FAILURES, 429: 5}
    assert ask(server, "127.0.3.1", "/api/v1/runs", ADMIN_TOKEN) == 200


def test_other_tokens_do_not_replace_one_that_is_known():
    failures, valid = open_tables("secret")
    LoginThrottle(failures, valid).add_valid("good")
    another_process = LoginThrottle(failures, valid)
    assert not any(another_process.was_valid(f"bogus {n}") for n in range(3 * SETS * WAYS))
    assert another_process.was_valid("good")
