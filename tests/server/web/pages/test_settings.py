"""The settings pages of tokens and retention."""

from __future__ import annotations

import re

import pytest

from memagent_server.app import create_app
from memagent_server.http import credentials, csrf
from memagent_server.store.tokens import list_tokens

HTML = {"Accept": "text/html"}
DAY_S = 86_400.0
PAGE = "/settings/tokens"


@pytest.fixture
def stored_tokens(database):
    """All tokens of the database."""

    def stored_tokens():
        with database.read() as session:
            return list(list_tokens(session))

    return stored_tokens


@pytest.fixture
def admin(client):
    """A browser that created the first admin token."""
    assert client.post(PAGE, data={"name": "ana", "scope": "admin"}).status_code == 200
    return client


def secret_on(answer):
    return re.search(r'class="secret">(mag_[\w-]+)<', answer.text)[1]


def test_the_first_token_is_an_admin_token_and_logs_its_creator_in(client, stored_tokens):
    assert "There is no token yet" in client.get(PAGE, headers=HTML).text
    refused = client.post(PAGE, data={"name": "trainers", "scope": "ingest"})
    assert (
        refused.status_code == 422
        and "admin" in refused.get_json(force=True)["detail"]
        and stored_tokens() == []
    )
    assert (
        client.post(PAGE, data={"name": "ana", "scope": "admin", "projects": "vision"}).status_code
        == 422
    )
    response = client.post(PAGE, data={"name": "ana", "scope": "admin"})
    assert response.status_code == 200 and response.headers["Cache-Control"] == "no-store"
    on_it = {csrf.FIELD: re.search(r'name="form_token" value="(\w+)"', response.text)[1]}
    assert (
        client.post(PAGE, data={"name": "bo", "scope": "read", **on_it}, as_it_is=True).status_code
        == 200
    )
    assert client.get(PAGE, headers=HTML).status_code == 200, (
        "the cookie opens what is closed to others now"
    )
    client.delete_cookie(credentials.COOKIE)
    assert client.get(PAGE, headers=HTML).status_code == 303


def test_a_token_is_shown_once_and_works(admin, stored_tokens):
    answer = admin.post(
        PAGE,
        data={"name": "trainers", "scope": "ingest", "projects": "vision, language", "days": "30"},
    )
    secret, token = secret_on(answer), stored_tokens()[-1]
    assert (token.name, token.scope, token.projects) == (
        "trainers",
        "ingest",
        ["vision", "language"],
    )
    assert token.expires_at - token.created_at == 30 * DAY_S
    html = admin.get(PAGE, headers=HTML).text
    assert secret not in html and "trainers" in html and "language" in html
    stranger = admin.application.test_client()
    headers = {"Authorization": f"Bearer {secret}"}
    assert (
        stranger.post(
            "/api/v1/runs", json={"run_id": "r", "project": "vision"}, headers=headers
        ).status_code
        == 201
    )


def test_a_token_is_revoked_at_once(admin, stored_tokens):
    secret = secret_on(admin.post(PAGE, data={"name": "bo", "scope": "read"}))
    response = admin.post(PAGE, data={"revoke": str(stored_tokens()[-1].id)})
    assert "is revoked." in response.text and "1 revoked or expired" in response.text
    stranger = admin.application.test_client()
    assert (
        stranger.get("/api/v1/runs", headers={"Authorization": f"Bearer {secret}"}).status_code
        == 401
    )
    assert admin.post(PAGE, data={"revoke": str(stored_tokens()[-1].id)}).status_code == 409
    assert admin.post(PAGE, data={"revoke": "99"}).status_code == 404
    assert admin.post(PAGE, data={"revoke": "x"}).status_code == 422


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", ""), ("name", "x" * 201), ("name", "a\0b"), ("scope", "root"), ("scope", ""), ("days", "31"), ("projects", "a\0b"),
     ("projects", ",".join("x" * 51)), ("projects", "x" * 201)],
)  # fmt: skip
def test_invalid_input_creates_nothing(admin, stored_tokens, field, value):
    response = admin.post(PAGE, data={"name": "n", "scope": "read", field: value})
    assert (response.status_code, response.get_json(force=True)["field"]) == (422, field)
    assert [token.name for token in stored_tokens()] == ["ana"]


def test_only_an_admin_of_all_projects_sees_tokens(admin):
    for data in (
        {"name": "bo", "scope": "read"},
        {"name": "cy", "scope": "admin", "projects": "vision"},
    ):
        other = admin.application.test_client()
        other.post("/login", data={"token": secret_on(admin.post(PAGE, data=data))})
        assert other.get(PAGE, headers=HTML).status_code == 403
        assert other.post(PAGE, data={"name": "me", "scope": "admin"}).status_code == 403
        assert 'href="/settings/tokens"' not in other.get("/settings", headers=HTML).text


def test_the_token_of_the_settings_is_listed_by_its_name(make_settings, sqlite_database):
    client = create_app(
        make_settings(sqlite_database.url, admin_token="sesame"), sqlite_database
    ).test_client()
    client.post("/login", data={"token": "sesame"})
    html = client.get(PAGE, headers=HTML).text
    assert "MEMAGENT_ADMIN_TOKEN" in html and "sesame" not in html


def test_retention_shows_periods_and_old_samples(database, make_settings):
    now = 1_800_000_000.0
    app = create_app(make_settings(database.url, retention_days=7), database, clock=lambda: now)
    client = app.test_client()
    columns = {"step": [1, 2], "time_s": [1.0, 2.0], "allocated_bytes": [1, 2]}
    client.post("/api/v1/runs", json={"run_id": "r", "name": "an old run"})
    client.post(
        "/api/v1/runs/r/batches",
        json={"seq": 0, "chunks": [{"stream": "host", "columns": columns}]},
    )
    client.post("/api/v1/runs/r/finish", json={"status": "completed"})
    html = client.get("/settings/retention", headers=HTML).text
    assert "7 days after the run ended" in html and "365 days" in html and "an old run" not in html
    assert (
        "There are no samples older than 3 days"
        in client.get("/settings/retention?older_than=3", headers=HTML).text
    )
    now += 3 * DAY_S + 1
    html = client.get("/settings/retention?older_than=3", headers=HTML).text
    assert "an old run" in html and "memagent prune --older-than 3d" in html and "of 1 run." in html
    assert client.get("/settings/retention?older_than=0").status_code == 422


def test_the_settings_pages_link_to_each_other(sqlite_client):
    for path in (
        "/settings",
        "/settings/columns",
        "/settings/channels",
        "/settings/routing",
        PAGE,
        "/settings/people",
        "/settings/changes",
        "/settings/retention",
    ):
        html = sqlite_client.get(path, headers=HTML).text
        links = re.findall(
            r'href="(/settings[^"?]*)"( aria-current="page")?',
            html.partition('aria-label="Settings"')[2],
        )
        assert [link for link, _ in links][:8] == [
            "/settings",
            "/settings/columns",
            "/settings/channels",
            "/settings/routing",
            PAGE,
            "/settings/people",
            "/settings/changes",
            "/settings/retention",
        ]
        assert [link for link, mark in links[:8] if mark] == [path]
