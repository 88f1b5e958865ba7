"""Tokens as they are kept."""

from __future__ import annotations

from memagent_server.store.tokens import add_token, any_token, find_token, get_token, list_tokens, revoke_tokens


def test_a_token_is_found_by_its_hash_until_it_is_revoked(database):
    with database.write() as session:
        token = add_token(session, "ci", "ingest", "h" * 64, 1.0)
        assert find_token(session, "h" * 64) is token
        assert find_token(session, "x" * 64) is None
        assert revoke_tokens(session, "ci", 2.0) == 1
        session.expire_all()
        assert find_token(session, "h" * 64) is None
        assert get_token(session, token.id) is None
        assert [token.revoked_at for token in list_tokens(session)] == [2.0]


def test_revoking_the_last_token_does_not_open_the_door(database):
    with database.write() as session:
        assert not any_token(session)
        add_token(session, "ci", "ingest", "h" * 64, 1.0)
        revoke_tokens(session, "ci", 2.0)
        assert any_token(session)


def test_it_can_be_revoked_by_its_id_and_only_once(database):
    with database.write() as session:
        token = add_token(session, "ci", "ingest", "h" * 64, 1.0)
        assert revoke_tokens(session, str(token.id), 2.0) == 1
        assert revoke_tokens(session, str(token.id), 3.0) == 0
        assert revoke_tokens(session, "9" * 30, 3.0) == 0
