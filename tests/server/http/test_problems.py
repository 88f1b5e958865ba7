"""Every error response is problem+json, without a traceback."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import event, text

from memagent_server.http.problems import ERROR_PAGE


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("PUT", "/api/v1/runs", 405),
        ("GET", "/nothing/at/all", 404),
        ("POST", "/healthz", 405),
    ],
)
def test_errors_of_the_router_are_problems(sqlite_client, method, path, status):
    response = sqlite_client.open(path, method=method)
    problem = response.get_json(force=True)
    assert (response.status_code, response.mimetype, problem["status"]) == (
        status,
        "application/problem+json",
        status,
    )
    assert path in problem["detail"]


def test_405_names_the_allowed_methods(sqlite_client):
    assert "GET" in sqlite_client.put("/api/v1/runs").headers["Allow"]


def test_an_internal_error_is_logged_and_not_shown(sqlite_app, caplog):
    @sqlite_app.get("/api/v1/broken")
    def broken():
        raise RuntimeError("the secret is xyzzy")

    with caplog.at_level(logging.ERROR):
        response = sqlite_app.test_client().get("/api/v1/broken")
    assert (response.status_code, response.mimetype) == (500, "application/problem+json")
    assert "xyzzy" not in response.text
    assert "Traceback" not in response.text
    assert "the secret is xyzzy" in caplog.text


def test_a_failing_database_is_a_503(sqlite_client, sqlite_database, caplog):
    with sqlite_database.engine.begin() as connection:
        connection.execute(text("DROP TABLE predictions"))
    with caplog.at_level(logging.ERROR):
        response = sqlite_client.get("/api/v1/runs")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
    assert "predictions" not in response.text


def test_a_database_problem_is_one_line_in_the_log_and_in_the_response(
    sqlite_client, sqlite_database, caplog
):
    @event.listens_for(sqlite_database.engine, "begin")
    def keep_from_growing(connection):
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    start = {"run_id": "r", "config": {"secret": "x" * 10**6}}
    with caplog.at_level(logging.ERROR):
        response = sqlite_client.post("/api/v1/runs", json=start)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "10")
    assert "no space left" in response.get_json(force=True)["detail"]
    assert [record.getMessage() for record in caplog.records] == [
        "POST /api/v1/runs: the database has no space left on its disk: free some (database or disk is full)"
    ]
    assert caplog.records[0].exc_info is None


def test_browsers_get_an_error_page(sqlite_app):
    sqlite_app.extensions[ERROR_PAGE] = lambda status, title, detail: (
        f"<h1>{status} {title}</h1>{detail}"
    )
    browser = sqlite_app.test_client()
    headers = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    response = browser.get("/nowhere", headers=headers)
    assert (response.status_code, response.mimetype) == (404, "text/html")
    assert "404 Not Found" in response.text
    assert browser.get("/api/v1/nowhere", headers=headers).mimetype == "application/problem+json"
