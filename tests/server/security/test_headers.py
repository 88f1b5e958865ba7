"""Every response, be it a page, JSON, a file or an error, has the security headers."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from memagent_server.app import create_app

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PATHS = (
    "/", "/runs/r", "/alerts", "/alerts/scoreboard", "/failures", "/waste",
    "/estimate", "/settings", "/settings/channels", "/api/v1/runs", "/api/v1/runs/r/series",
    "/api/v1/runs/r/export", "/metrics", "/healthz", "/readyz", "/static/memagent.css", "/static/run.js", "/static/mark.svg",
)  # fmt: skip


@pytest.fixture
def filled(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    return sqlite_client


def check(answer, status):
    assert answer.status_code == status
    policy = dict(
        part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; ")
    )
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert "unsafe" not in str(policy) and "data:" not in str(policy) and "*" not in str(policy)
    for name, value in (
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    ):
        assert answer.headers[name] == value
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["Cache-Control"].startswith(
        ("private", "no-cache", "no-store", "public, max-age=31536000")
    )
    answer.close()


@pytest.mark.parametrize("path", PATHS)
def test_every_path_has_the_headers(filled, path):
    check(filled.get(path, headers=HTML), 200)


@pytest.mark.parametrize("headers", [HTML, {"Accept": "application/json"}])
@pytest.mark.parametrize("folder", ["/", "/api/v1/"])
def test_every_error_has_the_headers(sqlite_app, folder, headers):
    def fail():
        raise RuntimeError("a bug")

    sqlite_app.add_url_rule(f"{folder}bug", "bug", fail)
    filled = sqlite_app.test_client()
    filled.post("/api/v1/runs", json={"run_id": "r"})
    check(filled.get(f"{folder}bug", headers=headers), 500)
    check(filled.get(f"{folder}nowhere", headers=headers), 404)
    check(filled.get(f"{folder}no\0where", headers=headers), 404)
    check(filled.put(f"{folder}runs/r", headers=headers), 405)
    check(filled.get("/runs/r?rank=x", headers=headers), 422)
    check(filled.post("/settings", as_it_is=True, headers=headers), 403)
    with sqlite_app.extensions["memagent"].database.engine.begin() as connection:
        connection.execute(text("DROP TABLE forecasts"))
    check(filled.get("/api/v1/runs" if folder != "/" else "/", headers=headers), 503)


def test_a_refusal_has_the_headers(make_settings, sqlite_database):
    client = create_app(
        make_settings(sqlite_database.url, admin_token="sesame"), sqlite_database
    ).test_client()
    check(client.get("/api/v1/runs"), 401)
    check(client.get("/", headers=HTML), 303)
    check(client.get("/login", headers=HTML), 200)
    check(client.post("/login", data={"token": "wrong"}, headers=HTML), 401)


def test_behind_tls_browsers_get_hsts(make_settings, sqlite_database):
    for url, policy in (
        ("https://memagent.example", "max-age=31536000"),
        ("http://memagent.example", None),
    ):
        client = create_app(
            make_settings(sqlite_database.url, public_url=url), sqlite_database
        ).test_client()
        assert client.get("/healthz").headers.get("Strict-Transport-Security") == policy
