"""Access tokens: created, listed, looked up by keyed hash, revoked. The token isn't stored.

Sessions of browsers are in signed cookies, and links to log in have signed codes; only what has
ended early or was used is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, CursorResult, and_, bindparam, delete, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent_server.schemas import base as schemas
from memagent_server.store.models import EndedSessionRow, TokenRow
from memagent_server.store.reading import to_schema
from memagent_server.store.statements import CompiledSelect, insert_if_missing

SCOPES = ("ingest", "read", "admin")


@dataclass(frozen=True)
class ValidToken:
    """A token that is neither revoked nor expired."""

    id: int
    name: str
    scope: str
    projects: list[str]
    hash: str
    last_used_at: float | None


# compiled, for each request runs one or two of these
_ANY = CompiledSelect(select(TokenRow.id).where(~TokenRow.is_local).limit(1))
_ANY_LOCAL = CompiledSelect(select(TokenRow.id).where(TokenRow.is_local).limit(1))
_VALID = select(*(getattr(TokenRow, field.name) for field in fields(ValidToken))).where(
    TokenRow.revoked_at.is_(None),
    or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > bindparam("now")),
)
_BY_HASH = CompiledSelect(_VALID.where(TokenRow.hash == bindparam("hash")))
_BY_ID = CompiledSelect(_VALID.where(TokenRow.id == bindparam("id")))
_LOCAL = CompiledSelect(_VALID.where(TokenRow.is_local, TokenRow.name == bindparam("name")))

_ENDED = CompiledSelect(select(EndedSessionRow.id).where(EndedSessionRow.id == bindparam("id")))


def create_token(
    session: Session,
    *,
    name: str,
    scope: str,
    token_hash: str,
    now: float,
    projects: Sequence[str] = (),
    expires_at: float | None = None,
    is_local: bool = False,
) -> TokenRow:
    """Store a token by its hash. `projects` limits it to their runs; without them it opens all."""
    token = TokenRow(
        name=name,
        scope=scope,
        hash=token_hash,
        created_at=now,
        projects=list(dict.fromkeys(projects)),
        expires_at=expires_at,
        is_local=is_local,
    )
    session.add(token)
    session.flush()
    return token


def list_tokens(session: Session) -> Sequence[TokenRow]:
    """Return all tokens ever created, the oldest first."""
    return session.scalars(select(TokenRow).order_by(TokenRow.id)).all()


def describe_token(token: TokenRow) -> schemas.Token:
    """Return a token without its hash."""
    return to_schema(schemas.Token, token)


def find_token(connection: Session | Connection, token_hash: str, now: float) -> ValidToken | None:
    """Return the valid token with this hash."""
    return _find(_BY_HASH, connection, {"hash": token_hash, "now": now})


def get_token(connection: Session | Connection, token_id: int, now: float) -> ValidToken | None:
    """Return the valid token with this id."""
    return _find(_BY_ID, connection, {"id": token_id, "now": now})


def find_local(connection: Session | Connection, name: str, now: float) -> ValidToken | None:
    """Return a valid token of this name that a server on loopback created by itself."""
    return _find(_LOCAL, connection, {"name": name, "now": now})


def any_token(connection: Session | Connection) -> bool:
    """Return True if anyone ever created a token: revoking the last must not open the server.

    Those that a server on loopback creates by itself don't count.
    """
    return bool(_ANY.rows(_connection_of(connection), {}))


def any_local_token(connection: Session | Connection) -> bool:
    """Return True if a server on loopback ever created tokens by itself."""
    return bool(_ANY_LOCAL.rows(_connection_of(connection), {}))


def revoke_token(session: Session, token_id: int, now: float) -> bool | None:
    """Revoke a token; return False if it was revoked before, None for an unknown one."""
    if session.scalar(select(TokenRow.id).where(TokenRow.id == token_id)) is None:
        return None
    return _revoke(session, TokenRow.id == token_id, now) == 1


def revoke_tokens(session: Session, name_or_id: str, now: float) -> int:
    """Revoke tokens by name or id; return how many were not revoked before."""
    condition = TokenRow.name == name_or_id
    # PostgreSQL refuses to compare an integer column with a longer number
    if name_or_id.isdecimal() and len(name_or_id) < 10:
        condition = or_(condition, TokenRow.id == int(name_or_id))
    return _revoke(session, condition, now)


def revoke_local(session: Session, name: str, now: float) -> None:
    """Revoke the tokens of this name that a server on loopback created by itself."""
    _revoke(session, and_(TokenRow.is_local, TokenRow.name == name), now)


def mark_used(session: Session, token_id: int, now: float) -> None:
    """Note when a token was last used."""
    session.execute(update(TokenRow).where(TokenRow.id == token_id).values(last_used_at=now))


def end_session(session: Session, session_id: str, *, expires_at: float, now: float) -> bool:
    """Store that a session has ended, and forget those whose cookies have expired.

    Return False if it had ended before.
    """
    session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at < now))
    values = {"id": session_id, "expires_at": expires_at}
    return insert_if_missing(session, EndedSessionRow, values)


def is_session_ended(connection: Session | Connection, session_id: str) -> bool:
    return bool(_ENDED.rows(_connection_of(connection), {"id": session_id}))


def _find(
    query: CompiledSelect, connection: Session | Connection, parameters: dict[str, Any]
) -> ValidToken | None:
    rows = query.rows(_connection_of(connection), parameters)
    return ValidToken(*rows[0]) if rows else None


def _connection_of(connection: Session | Connection) -> Connection:
    return connection.connection() if isinstance(connection, Session) else connection


def _revoke(session: Session, condition: ColumnElement[bool], now: float) -> int:
    result = session.execute(
        update(TokenRow).where(condition, TokenRow.revoked_at.is_(None)).values(revoked_at=now)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
