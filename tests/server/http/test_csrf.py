"""Only forms of the server's own pages are accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flask.testing import FlaskClient

import memagent_server
from memagent_server.app import create_app
from memagent_server.http import credentials, csrf
from memagent_server.store.tokens import create_token

HTML = {"Accept": "text/html"}
TEMPLATES = Path(memagent_server.__file__).parent / "web" / "templates"
FORMS = (
    "/settings",
    "/settings/columns",
    "/settings/channels",
    "/settings/routing",
    "/alerts/1/say",
    "/login",
    "/logout",
)


@pytest.fixture
def plain(sqlite_app):
    """A client that adds nothing to its requests."""
    return FlaskClient(sqlite_app, sqlite_app.response_class)


@pytest.fixture
def token(sqlite_app):
    """An admin token."""
    context, secret = sqlite_app.extensions["memagent"], credentials.new_token()
    with context.database.write() as session:
        create_token(
            session,
            name="ana",
            scope="admin",
            token_hash=credentials.token_hash(context.settings, secret),
            now=1.0,
        )
    return secret


def field_of(page):
    return re.search(rf'name="{csrf.FIELD}" value="(\w+)"', page.text)[1]


@pytest.mark.parametrize("path", FORMS)
def test_it_refuses_a_form_without_its_token(plain, path):
    plain.set_cookie(csrf.COOKIE, "anything")
    for field in (
        {},
        {csrf.FIELD: ""},
        {csrf.FIELD: "0" * 128},
        {csrf.FIELD: "0" * 64},
        {csrf.FIELD: "ü"},
    ):
        assert plain.post(path, data={"what": "save", **field}).status_code == 403


def test_a_form_token_is_valid_in_its_own_browser_only(plain, sqlite_app):
    token = field_of(plain.get("/settings", headers=HTML))
    stranger = FlaskClient(sqlite_app, sqlite_app.response_class)
    stranger.set_cookie(csrf.COOKIE, "the attacker's own")
    assert stranger.post("/settings", data={csrf.FIELD: token}).status_code == 403
    assert (
        stranger.post("/settings", data={csrf.FIELD: token}, headers={"Cookie": ""}).status_code
        == 403
    )
    assert plain.post("/settings", data={csrf.FIELD: token}).status_code == 303


def test_each_response_masks_its_token_and_the_page_stays_the_same(plain):
    first, again = (plain.get("/settings", headers=HTML) for _ in range(2))
    assert field_of(first) != field_of(again), "a compressed page would reveal it"
    assert len(set(re.findall(rf'name="{csrf.FIELD}" value="(\w+)"', first.text))) == 1
    assert first.headers["ETag"] == again.headers["ETag"]
    for page in (first, again):
        assert plain.post("/settings", data={csrf.FIELD: field_of(page)}).status_code == 303


def test_a_login_invalidates_earlier_form_tokens(plain, token):
    """A cookie and its token planted into a browser are useless once the user logs in."""
    planted = field_of(plain.get("/login", headers=HTML))
    assert plain.post("/login", data={"token": token, csrf.FIELD: planted}).status_code == 303
    assert plain.post("/settings", data={csrf.FIELD: planted}).status_code == 403
    assert (
        plain.post(
            "/settings", data={csrf.FIELD: field_of(plain.get("/settings", headers=HTML))}
        ).status_code
        == 303
    )


def test_programs_log_in_without_a_form_token_and_browsers_do_not(plain, token):
    for name, value in (
        ("Origin", "http://localhost"),
        ("Sec-Fetch-Site", "none"),
        ("Referer", "http://localhost/"),
    ):
        assert plain.post("/login", data={"token": token}, headers={name: value}).status_code == 403
    assert plain.post("/login", data={"token": token}).status_code == 303


def test_a_bearer_token_needs_no_form_token(plain, token):
    assert plain.post("/settings", headers={"Authorization": f"Bearer {token}"}).status_code == 303


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_no_other_site_changes_anything_through_a_browser(sqlite_client, site):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    assert (
        sqlite_client.delete("/api/v1/runs/r", headers={"Sec-Fetch-Site": site}).status_code == 403
    )
    assert sqlite_client.post("/settings", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert sqlite_client.delete("/api/v1/runs/r", headers={"Origin": "null"}).status_code == 403
    assert (
        sqlite_client.delete(
            "/api/v1/runs/r", headers={"Sec-Fetch-Site": "same-origin"}
        ).status_code
        == 204
    )


def test_the_public_address_is_an_own_origin_behind_a_proxy(make_settings, sqlite_database):
    settings = make_settings(sqlite_database.url, public_url="https://memagent.example")
    client = create_app(settings, sqlite_database).test_client()
    client.post("/api/v1/runs", json={"run_id": "r"})
    for origin, status in (("https://evil.example", 403), ("https://memagent.example", 204)):
        assert client.delete("/api/v1/runs/r", headers={"Origin": origin}).status_code == status


def test_a_form_is_limited_in_size(sqlite_client):
    assert (
        sqlite_client.post("/settings", data={"project": "x" * csrf.MAX_FORM_BYTES}).status_code
        == 413
    )


def test_every_form_that_posts_has_the_hidden_field():
    results = [
        form
        for path in TEMPLATES.rglob("*.html")
        for form in re.findall(r"<form\b.{0,400}", path.read_text(), re.S)
    ]
    posting = [
        form
        for form in results
        if 'method="post"' in form.partition("<input")[0].partition("<button")[0]
    ]
    assert len(posting) >= 6
    assert [form for form in posting if "{{ form_field() }}" not in form] == []


def test_cookies_are_out_of_reach_of_scripts_and_other_sites(make_settings, sqlite_database, token):
    for public_url, prefix in (
        ("http://127.0.0.1:8420", ""),
        ("https://memagent.example", "__Host-"),
    ):
        app = create_app(make_settings(sqlite_database.url, public_url=public_url), sqlite_database)
        client = FlaskClient(app, app.response_class)
        cookies = [
            client.get("/login", headers=HTML).headers["Set-Cookie"],
            app.test_client()
            .post("/login", data={"token": token}, as_it_is=True)
            .headers["Set-Cookie"],
        ]
        for cookie, name, site in zip(
            cookies, (csrf.COOKIE, credentials.COOKIE), ("Strict", "Lax"), strict=True
        ):
            assert cookie.startswith(f"{prefix}{name}=")
            assert (
                "HttpOnly" in cookie
                and f"SameSite={site}" in cookie
                and "Path=/" in cookie
                and "Domain" not in cookie
            )
            assert ("Secure" in cookie) == bool(prefix)
