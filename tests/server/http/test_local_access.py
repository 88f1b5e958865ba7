"""Tokens that a server on loopback creates by itself, and links that log in once."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from memagent.wire import local_tokens
from memagent_server.app import create_app
from memagent_server.http import credentials, local_access
from memagent_server.store.tokens import any_token, list_tokens, revoke_tokens

NOW = 1_000_000.0


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture
def settings(make_settings, database):
    return make_settings(database.url, is_open=False)


@pytest.fixture
def ensure(database, settings):
    """ensure(**changes): the tokens in the file after a start of the server."""

    def ensure(**changes):
        changed = dataclasses.replace(settings, **changes)
        local_access.ensure_tokens(database, changed, NOW)
        return local_tokens.load(local_tokens.path_of(changed.port))

    return ensure


@pytest.fixture
def browser(database, settings):
    """browser(now=NOW): a browser without cookies, at another web process."""

    def browser(now=NOW):
        return create_app(settings, database, clock=lambda: now).test_client()

    return browser


@pytest.fixture
def link(ensure, database, settings):
    """link(path): the part of a link behind the server's address."""
    ensure()

    def link(path="/"):
        url = local_access.new_link(database, settings, NOW, path=path)
        return url.removeprefix("http://127.0.0.1:8420")

    return link


def valid_names(database):
    with database.read() as session:
        return [row.name.partition(":")[2] for row in list_tokens(session) if not row.revoked_at]


def test_a_first_start_creates_tokens_that_the_next_keeps(ensure, database, settings):
    first = ensure()
    assert valid_names(database) == ["8420 ingest", "8420 read", "8420 admin"]
    assert ensure() == first
    with database.read() as session:
        for text, scope in ((first.ingest, "ingest"), (first.read, "read")):
            assert credentials.check_token(session, settings, text, NOW).scope == scope


def test_stale_revoked_and_unsafe_tokens_are_replaced(ensure, database):
    path = local_tokens.path_of(8420)
    tokens = [ensure()]
    for spoil in (path.unlink, lambda: path.chmod(0o644), lambda: path.write_text("{}")):
        spoil()
        tokens.append(ensure())
    with database.write() as session:
        assert revoke_tokens(session, list_tokens(session)[-1].name, NOW) == 1
    tokens.append(ensure())
    assert len({item.ingest for item in tokens}) == 5
    assert valid_names(database) == ["8420 ingest", "8420 read", "8420 admin"]


def test_each_port_has_its_own_tokens(ensure, database):
    first = ensure()
    ensure(port=8421)
    assert ensure() == first and len(valid_names(database)) == 6


@pytest.mark.parametrize(
    "changes", [{"is_open": True}, {"admin_token": "x" * 20}, {"host": "0.0.0.0"}]
)
def test_other_servers_create_none(ensure, database, changes):
    assert ensure(**changes) is None and valid_names(database) == []


def test_an_administrators_tokens_replace_them_unless_they_came_first(ensure, database, settings):
    def create():
        with database.write() as session:
            credentials.issue_token(session, settings, name="ana", scope="admin", now=NOW)

    create()
    assert ensure() is None
    with database.write() as session:
        list_tokens(session)[0].is_local = True
    first = ensure()
    with database.read() as session:
        assert not any_token(session), "its own don't count"
    create()
    assert first is not None and ensure() == first


def test_a_users_token_of_a_local_name_is_the_users(ensure, database, settings):
    ensure()
    with database.write() as session:
        name = next(row.name for row in list_tokens(session) if row.name.endswith("admin"))
        secret, _ = credentials.issue_token(session, settings, name=name, scope="admin", now=NOW)
    local_tokens.path_of(8420).unlink()
    ensure()
    with database.read() as session:
        assert any_token(session), "an administrator has created one"
        assert credentials.check_token(session, settings, secret, NOW) is not None


def test_a_folder_that_cannot_be_written_is_a_warning(ensure, database, tmp_path, caplog):
    (tmp_path / "memagent").write_text("a file")
    assert ensure() is None
    assert "set MEMAGENT_TOKEN" in caplog.text and "8420 admin" in valid_names(database)


def test_a_link_logs_in_once_in_all_web_processes(link, browser):
    page = link("/runs/r?x=1")
    first = browser()
    response = first.get(page)
    assert (response.status_code, response.headers["Location"]) == (303, "/runs/r?x=1")
    assert response.headers["Cache-Control"] == "no-store"
    assert first.get("/settings/tokens").status_code == 200
    assert first.get(page).status_code == 303, "the same browser is logged in"
    other = browser()
    refused = other.get(page)
    assert refused.status_code == 401 and "This link was used or has expired." in refused.text
    assert "<code>memagent token link --listen 127.0.0.1:8420</code>" in refused.text
    assert other.get("/api/v1/runs").status_code == 401


def test_a_code_is_spent_once_by_clicks_at_the_same_time(link, browser):
    page = link()
    clients = [browser() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(lambda client: client.get(page).status_code, clients))
    assert sorted(statuses) == [303] + 5 * [401]


def test_a_link_expires_and_can_not_be_forged(link, browser, settings):
    page = link()
    assert browser(NOW + local_access.LINK_S).get(page).status_code == 401
    for code in ("", "x", page.partition("code=")[2][:-1], "WyJhIl0.x"):
        assert browser().get(f"/login?code={code}").status_code == 401
    assert browser(NOW + local_access.LINK_S - 1).get(page).status_code == 303


def test_a_link_leads_nowhere_else(link, browser):
    response = browser().get(f"{link()}&next=//evil.example")
    assert response.headers["Location"] == "/"


def test_head_and_previews_without_get_do_not_spend_it(link, browser):
    page = link()
    assert browser().head(page).status_code == 401
    assert browser().get(page).status_code == 303


def test_a_revoked_token_ends_links_and_sessions(link, browser, database):
    used, unused = link(), link()
    client = browser()
    client.get(used)
    with database.write() as session:
        revoke_tokens(session, list_tokens(session)[-1].name, NOW)
    assert browser().get(unused).status_code == 401
    assert client.get("/api/v1/runs").status_code == 401
