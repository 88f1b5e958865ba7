"""Access by tokens, scopes and cookies."""

from __future__ import annotations

import pytest
from flask import Response

from memagent.errors import SettingError
from memagent_server.app import create_app
from memagent_server.http import credentials
from memagent_server.settings import Settings
from memagent_server.store.tokens import list_tokens, revoke_tokens

NOW = 1_000_000.0


@pytest.fixture
def settings(make_settings, sqlite_database):
    return make_settings(sqlite_database.url)


@pytest.fixture
def token_of(sqlite_database, settings):
    """Return a function that creates a token of a scope."""

    def token_of(scope, name="t", **limits):
        with sqlite_database.write() as session:
            return credentials.issue_token(
                session, settings, name=name, scope=scope, now=NOW, **limits
            )[0]

    return token_of


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_the_server_is_unprotected_until_the_first_token(sqlite_client):
    assert sqlite_client.post("/api/v1/runs", json={"run_id": "r"}).status_code == 201
    assert sqlite_client.get("/api/v1/runs").status_code == 200
    assert sqlite_client.delete("/api/v1/runs/r").status_code == 204


def test_the_first_token_protects_it_and_revoking_it_keeps_it_protected(
    sqlite_client, sqlite_database, token_of
):
    token_of("ingest")
    assert sqlite_client.get("/api/v1/runs").status_code == 401
    with sqlite_database.write() as session:
        revoke_tokens(session, "t", NOW)
    response = sqlite_client.get("/api/v1/runs")
    assert (response.status_code, response.mimetype, response.headers["WWW-Authenticate"]) == (
        401,
        "application/problem+json",
        "Bearer",
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/v1/runs", {"ingest", "admin"}),
        ("POST", "/api/v1/runs/r/batches", {"ingest", "admin"}),
        ("POST", "/api/v1/runs/r/predictions", {"ingest", "admin"}),
        ("POST", "/api/v1/runs/r/finish", {"ingest", "admin"}),
        ("GET", "/api/v1/runs", {"read", "admin"}),
        ("GET", "/api/v1/runs/r/series", {"read", "admin"}),
        ("POST", "/api/v1/estimate", {"read", "admin"}),
        ("GET", "/metrics", {"read", "admin"}),
        ("DELETE", "/api/v1/runs/r", {"admin"}),
        ("POST", "/api/v1/runs/r/snapshots", {"ingest", "admin"}),
        ("POST", "/api/v1/alerts/1/ack", {"read", "admin"}),
        ("POST", "/api/v1/alerts/1/snooze", {"read", "admin"}),
        ("POST", "/api/v1/alerts/1/false-alarm", {"read", "admin"}),
        ("POST", "/api/v1/alerts/1/undo", {"read", "admin"}),
        ("POST", "/alerts/1/say", {"read", "admin"}),
        ("PUT", "/api/v1/rules", {"admin"}),
        ("POST", "/settings", {"admin"}),
        ("POST", "/api/v1/notifications/1/retry", {"admin"}),
        ("POST", "/api/v1/channels/webhook/test", {"admin"}),
        ("POST", "/anything/new", {"admin"}),
    ],
)
def test_scopes_limit_what_a_token_may_do(sqlite_client, token_of, method, path, allowed):
    for scope in ("ingest", "read", "admin"):
        response = sqlite_client.open(path, method=method, headers=bearer(token_of(scope)))
        assert (response.status_code == 403) == (scope not in allowed), (
            scope,
            response.status_code,
        )
        assert response.status_code != 401


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic dXNlcjpwYXNz", "mag_x", ""])
def test_wrong_tokens_are_refused(sqlite_client, token_of, header):
    token_of("admin")
    assert sqlite_client.get("/api/v1/runs", headers={"Authorization": header}).status_code == 401


def test_a_revoked_token_is_refused_at_once(sqlite_client, sqlite_database, token_of):
    token = token_of("read", name="ana")
    assert sqlite_client.get("/api/v1/runs", headers=bearer(token)).status_code == 200
    with sqlite_database.write() as session:
        revoke_tokens(session, "ana", NOW)
    assert sqlite_client.get("/api/v1/runs", headers=bearer(token)).status_code == 401


def test_an_expired_token_and_its_cookie_are_refused(settings, sqlite_database, token_of):
    clock = [NOW]
    client = create_app(settings, sqlite_database, clock=lambda: clock[0]).test_client()
    token = token_of("read", expires_at=NOW + 60)
    assert client.get("/api/v1/runs", headers=bearer(token)).status_code == 200
    assert client.post("/login", data={"token": token}).status_code == 303
    assert client.get("/api/v1/runs").status_code == 200
    clock[0] = NOW + 60
    assert client.get("/api/v1/runs", headers=bearer(token)).status_code == 401
    assert client.get("/api/v1/runs").status_code == 401
    assert client.post("/login", data={"token": token}).status_code == 401


def test_the_admin_token_of_the_settings_protects_the_server(make_settings, sqlite_database):
    client = create_app(
        make_settings(sqlite_database.url, admin_token="sesame"), sqlite_database
    ).test_client()
    assert client.get("/api/v1/runs").status_code == 401
    assert client.get("/api/v1/runs", headers=bearer("Sesame")).status_code == 401
    assert client.get("/api/v1/runs", headers=bearer("sesame")).status_code == 200


def test_health_needs_no_token(sqlite_client, token_of):
    token_of("admin")
    assert (
        sqlite_client.get("/healthz").status_code == sqlite_client.get("/readyz").status_code == 200
    )


def test_a_token_is_not_in_the_database(sqlite_database, settings, token_of):
    token = token_of("read")
    with sqlite_database.read() as session:
        (row,) = list_tokens(session)
    assert row.hash == credentials.token_hash(settings, token)
    assert token not in row.hash
    assert len(row.hash) == 64


def test_the_last_use_is_recorded_at_intervals(sqlite_database, settings, token_of):
    clock = iter([NOW, NOW + 30, NOW + 61])
    client = create_app(settings, sqlite_database, clock=lambda: next(clock)).test_client()
    token, times = token_of("read"), []
    for _ in range(3):
        client.get("/api/v1/runs", headers=bearer(token))
        with sqlite_database.read() as session:
            times.append(list_tokens(session)[0].last_used_at)
    assert times == [NOW, NOW, NOW + 61]


@pytest.mark.parametrize(
    "host", ["evil.example", "192.168.1.5:8420", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_an_unprotected_server_accepts_loopback_names_only(sqlite_client, host):
    """DNS rebinding: the name of evil.example now resolves to 127.0.0.1."""
    assert sqlite_client.get("/api/v1/runs", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8420", "[::1]:8420", "127.0.0.2"])
def test_loopback_names_are_accepted(sqlite_client, host):
    assert sqlite_client.get("/api/v1/runs", headers={"Host": host}).status_code == 200


def test_a_protected_server_accepts_any_name(sqlite_client, token_of):
    headers = {"Host": "memagent.example", **bearer(token_of("read"))}
    assert sqlite_client.get("/api/v1/runs", headers=headers).status_code == 200


def test_pages_of_other_origins_cannot_change_anything(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    assert (
        sqlite_client.delete(
            "/api/v1/runs/r", headers={"Origin": "https://evil.example"}
        ).status_code
        == 403
    )
    assert sqlite_client.delete("/api/v1/runs/r", headers={"Origin": "null"}).status_code == 403
    assert (
        sqlite_client.delete("/api/v1/runs/r", headers={"Origin": "http://localhost"}).status_code
        == 204
    )


@pytest.fixture
def log_in(sqlite_database, settings):
    """The cookie that the login page sets for a token."""

    def log_in(client, token, used=settings):
        with sqlite_database.read() as session:
            access = credentials.check_token(session, used, token, NOW)
        response = Response()
        credentials.set_session_cookie(response, used, access)
        cookie = response.headers["Set-Cookie"]
        client.set_cookie(credentials.COOKIE, cookie.partition("=")[2].partition(";")[0])
        return cookie

    return log_in


def test_a_cookie_has_the_scope_of_its_token(sqlite_client, sqlite_database, token_of, log_in):
    cookie = log_in(sqlite_client, token_of("read", name="ana"))
    assert {"HttpOnly", "SameSite=Lax"} <= {part.strip() for part in cookie.split(";")}
    assert sqlite_client.get("/api/v1/runs").status_code == 200
    assert sqlite_client.delete("/api/v1/runs/r").status_code == 403
    with sqlite_database.write() as session:
        revoke_tokens(session, "ana", NOW)
    assert sqlite_client.get("/api/v1/runs").status_code == 401


def test_a_cookie_works_for_own_pages_only(sqlite_client, token_of, log_in):
    log_in(sqlite_client, token_of("admin"))
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    assert (
        sqlite_client.delete(
            "/api/v1/runs/r", headers={"Origin": "https://evil.example"}
        ).status_code
        == 403
    )
    assert (
        sqlite_client.delete("/api/v1/runs/r", headers={"Origin": "http://localhost"}).status_code
        == 204
    )


@pytest.mark.parametrize("cookie", ["", "x", "MQ.aaaa.bbbb", "MQ"])
def test_a_forged_cookie_is_refused(sqlite_client, token_of, cookie):
    token_of("admin")
    sqlite_client.set_cookie(credentials.COOKIE, cookie)
    assert sqlite_client.get("/api/v1/runs").status_code == 401


def test_a_cookie_of_the_admin_token_ends_with_it(make_settings, sqlite_database, log_in):
    old, new = (make_settings(sqlite_database.url, admin_token=token) for token in ("old", "new"))
    for used, status in ((old, 200), (new, 401)):
        client = create_app(used, sqlite_database).test_client()
        log_in(client, "old", old)
        assert client.get("/api/v1/runs").status_code == status


@pytest.mark.parametrize("by_file", [False, True])
def test_a_short_admin_token_is_refused(tmp_path, by_file):
    def settings(token):
        environ = {"MEMAGENT_ADMIN_TOKEN": token}
        if by_file:
            (tmp_path / "token").write_text(f"{token}\n")
            environ = {"MEMAGENT_ADMIN_TOKEN_FILE": str(tmp_path / "token")}
        return Settings.from_environ({"XDG_DATA_HOME": str(tmp_path), **environ})

    with pytest.raises(
        SettingError, match=r"MEMAGENT_ADMIN_TOKEN has 15 characters.*openssl rand"
    ) as caught:
        settings("fifteen-letters")
    assert "fifteen" not in str(caught.value)
    assert settings("sixteen--letters").admin_token == "sixteen--letters"


def test_a_browser_without_a_token_is_sent_to_the_login_page(sqlite_client, token_of):
    token_of("read")
    response = sqlite_client.get("/runs/r?x=1", headers={"Accept": "text/html"})
    assert (response.status_code, response.headers["Location"]) == (
        303,
        "/login?next=%2Fruns%2Fr%3Fx%3D1",
    )
    assert sqlite_client.get("/api/v1/runs", headers={"Accept": "text/html"}).status_code == 401


def test_tokens_are_long_and_unique():
    tokens = {credentials.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43
