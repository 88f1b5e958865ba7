"""Problem details: they say what to do, name the request, and never show a traceback."""

from __future__ import annotations

import gzip

import msgspec
import pytest

from memagent_server.store.engine import Database

RUNS = "/api/v1/runs"
CASES = {
    "no such route": ("GET", "/api/v1/nothing", {}, 404, "Nothing is at /api/v1/nothing"),
    "no such run": ("GET", f"{RUNS}/nobody", {}, 404, "Unknown run 'nobody'"),
    "a method that is not possible": ("PUT", RUNS, {}, 405, "/api/v1/runs does not support PUT. Allowed: "),
    "an answer that cannot be had": ("GET", RUNS, {"headers": {"Accept": "text/csv"}}, 406, "application/json"),
    "no JSON": ("POST", RUNS, {"data": b"{", "content_type": "application/json"}, 400, "isn't valid application/json"),
    "too large a body": ("POST", RUNS, {"data": bytes(9 * 2**20), "content_type": "application/json"}, 413, "smaller"),
    "a type that nobody reads": ("POST", RUNS, {"data": b"x", "content_type": "text/csv"}, 415, "Send application/json"),
    "an encoding that nobody reads": ("POST", RUNS, {"json": {}, "headers": {"Content-Encoding": "br"}}, 415, "gzip"),
    "a compression that is broken": (
        "POST", RUNS, {"data": gzip.compress(b"{}")[:-1], "content_type": "application/json", "headers": {"Content-Encoding": "gzip"}},
        400, "not valid gzip",
    ),
    "a field that is missing": ("POST", RUNS, {"json": {}}, 422, "run_id"),
    "a parameter that is wrong": ("GET", f"{RUNS}?limit=0", {}, 422, "a whole number from 1 to 200"),
}  # fmt: skip


def check(answer, status):
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json")
    problem = msgspec.json.decode(answer.data)
    assert problem["status"] == status and problem["title"] and len(problem["detail"]) > 10
    assert problem["request_id"] == answer.headers["X-Request-ID"]
    assert "Traceback" not in answer.text
    return problem


@pytest.mark.parametrize("case", CASES)
def test_a_refused_request_gets_advice(sqlite_client, case):
    method, path, options, status, problem = CASES[case]
    response = sqlite_client.open(path, method=method, **options)
    assert problem in check(response, status)["detail"]
    if status == 405:
        assert {"GET", "POST"} <= set(response.headers["Allow"].split(", "))


def test_an_internal_error_shows_no_traceback(sqlite_app, sqlite_client, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr(Database, "read", fail)
    response = sqlite_client.get(RUNS)
    assert (
        "See the server log" in check(response, 500)["detail"]
        and "a secret of ours" not in response.text
    )


def test_the_request_id_is_returned(sqlite_client):
    response = sqlite_client.get(f"{RUNS}/nobody", headers={"X-Request-ID": "from-a-proxy"})
    assert check(response, 404)["request_id"] == "from-a-proxy"
