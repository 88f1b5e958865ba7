"""Logging in exchanges a token for a cookie, and never redirects to another site."""

from __future__ import annotations

import pytest

from memagent_server.http import credentials
from memagent_server.store.models import EndedSessionRow, TokenRow
from memagent_server.web.rendering import safe_path

HTML = {"Accept": "text/html"}


@pytest.fixture
def token_of(sqlite_app):
    """token_of("read"): a token of that scope."""

    def make(scope):
        context, token = sqlite_app.extensions["memagent"], credentials.new_token()
        with context.database.write() as session:
            session.add(
                TokenRow(
                    name=scope,
                    scope=scope,
                    hash=credentials.token_hash(context.settings, token),
                    created_at=1.0,
                )
            )
        return token

    return make


def test_no_login_is_required_without_tokens(sqlite_client):
    response = sqlite_client.get("/login", headers=HTML)
    assert (response.status_code, response.headers["Location"]) == (303, "/")


def test_a_login_leads_to_the_requested_page(sqlite_client, token_of):
    token = token_of("read")
    redirect = sqlite_client.get("/alerts?state=open", headers=HTML)
    form = sqlite_client.get(redirect.headers["Location"], headers=HTML).get_data(as_text=True)
    assert 'value="/alerts?state=open"' in form
    reply = sqlite_client.post(
        "/login", data={"token": f" {token}\n", "next": "/alerts?state=open"}
    )
    assert (reply.status_code, reply.headers["Location"]) == (303, "/alerts?state=open")
    response = sqlite_client.get("/alerts?state=open", headers=HTML)
    assert response.status_code == 200
    assert "Log out" in response.get_data(as_text=True)


def test_logging_out_ends_access(sqlite_client, token_of):
    sqlite_client.post("/login", data={"token": token_of("read")})
    assert sqlite_client.post("/logout").headers["Location"] == "/login"
    assert sqlite_client.get("/", headers=HTML).status_code == 303


def test_a_cookie_is_refused_after_its_logout(sqlite_client, token_of):
    token = token_of("read")
    cookies = []
    for _ in range(2):
        sqlite_client.post("/login", data={"token": token})
        cookies.append(sqlite_client.get_cookie(credentials.COOKIE).value)
    sqlite_client.post("/logout")
    assert sqlite_client.get_cookie(credentials.COOKIE) is None
    statuses = []
    for cookie in cookies:
        sqlite_client.set_cookie(credentials.COOKIE, cookie)
        statuses.append(sqlite_client.get("/", headers=HTML).status_code)
    assert statuses == [200, 303], "the other session goes on"


def test_logging_out_without_a_session_stores_nothing(sqlite_client, sqlite_app):
    for cookie in ("", "forged", "MQ.aaaa.bbbb"):
        sqlite_client.set_cookie(credentials.COOKIE, cookie)
        assert sqlite_client.post("/logout").status_code == 303
    with sqlite_app.extensions["memagent"].database.read() as session:
        assert session.query(EndedSessionRow).count() == 0


def test_an_invalid_token_is_refused_with_an_error(sqlite_client, token_of):
    token_of("read")
    response = sqlite_client.post("/login", data={"token": "mag_guess", "next": "/alerts"})
    assert response.status_code == 401
    html = response.get_data(as_text=True)
    assert "Unknown, revoked or expired token" in html
    assert 'value="/alerts"' in html
    assert "mag_guess" not in html
    assert "memagent token create" in html and "token link" not in html, "it has no links"
    assert sqlite_client.get("/", headers=HTML).status_code == 303


def test_an_ingest_token_cannot_log_in(sqlite_client, token_of):
    response = sqlite_client.post("/login", data={"token": token_of("ingest")})
    assert (response.status_code, "Set-Cookie" in response.headers) == (403, False)


def test_other_sites_cannot_log_users_in_or_out(sqlite_client, token_of):
    token, foreign = token_of("read"), {"Origin": "https://evil.example"}
    assert sqlite_client.post("/login", data={"token": token}, headers=foreign).status_code == 403
    assert sqlite_client.post("/logout", headers=foreign).status_code == 403


@pytest.mark.parametrize(
    "target",
    [None, "", "https://evil.example", "//evil.example", "/\\evil.example", "evil", "/a\r\nb: c"],
)
def test_a_login_never_redirects_to_another_site(target):
    assert safe_path(target) == "/"


def test_a_login_redirects_to_own_paths():
    assert safe_path("/runs/r?rank=1") == "/runs/r?rank=1"


def test_the_first_visit_mentions_the_token_that_a_script_needs(sqlite_client, token_of):
    sqlite_client.post("/login", data={"token": token_of("read")})
    assert "MEMAGENT_TOKEN" in sqlite_client.get("/", headers=HTML).get_data(as_text=True)
