"""Stored tokens, and the command that creates them."""

from __future__ import annotations

import json

import pytest

from memagent.cli import main
from memagent_server.http import credentials
from memagent_server.settings import Settings
from memagent_server.store.engine import Database
from memagent_server.store.tokens import (
    any_token,
    create_token,
    describe_token,
    end_session,
    find_token,
    get_token,
    is_session_ended,
    list_tokens,
    revoke_token,
    revoke_tokens,
)

HASH = "h" * 64


def make(session, **facts):
    return create_token(
        session, **{"name": "ci", "scope": "ingest", "token_hash": HASH, "now": 1.0, **facts}
    )


def test_a_token_is_valid_until_it_is_revoked(database):
    with database.write() as session:
        token = make(session)
        assert find_token(session, HASH, 2.0).id == token.id
        assert find_token(session, "x" * 64, 2.0) is None
        assert revoke_tokens(session, "ci", 2.0) == 1
        session.expire_all()
        assert find_token(session, HASH, 2.0) is None
        assert get_token(session, token.id, 2.0) is None
        assert [token.revoked_at for token in list_tokens(session)] == [2.0]


def test_an_ended_session_is_stored_until_its_cookie_expires(database):
    with database.write() as session:
        for _ in range(2):
            end_session(session, "one", expires_at=10.0, now=1.0)
    with database.write() as session:
        assert is_session_ended(session, "one") and not is_session_ended(session, "two")
        end_session(session, "two", expires_at=20.0, now=10.5)
    with database.read() as session:
        assert not is_session_ended(session, "one") and is_session_ended(session, "two")


def test_a_token_is_valid_until_it_expires(database):
    with database.write() as session:
        token = make(session, expires_at=10.0)
        assert find_token(session, HASH, 9.9) == get_token(session, token.id, 9.9)
        assert get_token(session, token.id, 9.9).hash == HASH
        assert find_token(session, HASH, 10.0) is get_token(session, token.id, 10.0) is None


def test_revoking_the_last_token_keeps_the_server_protected(database):
    with database.write() as session:
        assert not any_token(session)
        make(session)
        revoke_tokens(session, "ci", 2.0)
        assert any_token(session)


def test_it_can_be_revoked_by_its_id_and_only_once(database):
    with database.write() as session:
        token = make(session)
        assert revoke_token(session, token.id, 2.0)
        assert not revoke_token(session, token.id, 3.0)
        assert revoke_tokens(session, str(token.id), 3.0) == 0
        assert revoke_tokens(session, "9" * 30, 3.0) == 0


def test_a_listed_token_has_all_fields_but_its_hash(database):
    with database.write() as session:
        body = describe_token(make(session, projects=["b", "a", "b"], expires_at=10.0))
    assert HASH not in str(body)
    assert (body.name, body.scope, body.projects) == ("ci", "ingest", ["b", "a"])
    assert (body.created_at, body.expires_at, body.last_used_at) == (
        "1970-01-01T00:00:01.000Z",
        "1970-01-01T00:00:10.000Z",
        None,
    )


@pytest.fixture
def token(sqlite_url, monkeypatch, capsys):
    """token(*arguments) runs `memagent token`: exit status, stdout, stderr."""
    monkeypatch.setenv("MEMAGENT_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("MEMAGENT_SECRET_KEY", "secret")

    def run(*arguments):
        status = main(["token", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_a_token_can_have_projects_and_an_expiry(token, sqlite_url):
    status, out, _ = token(
        "create", "ci", "--project", "vision", "--project", "nlp", "--expires", "90d", "--json"
    )
    fields = json.loads(out)
    assert (status, fields["projects"], fields["scope"]) == (0, ["vision", "nlp"], "ingest")
    secret = token("create", "whole", "--scope", "read")[1].strip()
    database = Database(sqlite_url)
    with database.read() as session:
        settings = Settings(database_url=sqlite_url, secret_key="secret")
        ci, whole = list_tokens(session)
        assert ci.expires_at - ci.created_at == 90 * 86_400
        assert credentials.check_token(
            session, settings, fields["token"], ci.expires_at - 1
        ).projects == ("vision", "nlp")
        assert credentials.check_token(session, settings, fields["token"], ci.expires_at) is None
        assert credentials.check_token(session, settings, secret, ci.created_at).projects == ()
    database.close()
    _, listed, _ = token("list")
    assert "ci for vision, nlp" in listed and f"expires {fields['expires_at']}" in listed
    assert fields["token"] not in listed and "last used never" in listed
    assert [row["projects"] for row in json.loads(token("list", "--json")[1])] == [
        ["vision", "nlp"],
        [],
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--expires", "soon"), "Invalid --expires 'soon': write 12h, 30d or 8w"),
        (("--project", ""), "The project must have 1 to 200"),
    ],
)
def test_an_invalid_token_is_not_created(token, arguments, named):
    status, out, err = token("create", "ci", *arguments)
    assert (status, out) == (2, "") and named in err
    assert "no tokens" in token("list")[2]


def test_a_token_is_revoked_by_name(token):
    token("create", "ci")
    assert token("revoke", "ci")[0] == 0
    status, _, err = token("revoke", "ci")
    assert status == 1 and "memagent token list" in err
    assert "revoked 2" in token("list")[1]
