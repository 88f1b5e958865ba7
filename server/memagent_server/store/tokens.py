"""Access tokens: made, listed, looked up by their keyed hash, revoked. The token itself is never stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent_server.store.compiled_statements import CompiledSelect
from memagent_server.store.models import Token
from memagent_server.store.timestamps import iso

SCOPES = ("ingest", "read", "admin")


@dataclass(frozen=True)
class KnownToken:
    """What is known of a token that opens something."""

    id: int
    name: str
    scope: str
    projects: list[str]
    hash: str
    last_used_at: float | None


# each request asks one or two of these
_ANY = CompiledSelect(select(Token.id).limit(1))
_VALID = select(*(getattr(Token, field.name) for field in fields(KnownToken))).where(
    Token.revoked_at.is_(None), or_(Token.expires_at.is_(None), Token.expires_at > bindparam("now"))
)
_BY_HASH = CompiledSelect(_VALID.where(Token.hash == bindparam("hash")))
_BY_ID = CompiledSelect(_VALID.where(Token.id == bindparam("id")))


def create_token(
    session: Session,
    *,
    name: str,
    scope: str,
    token_hash: str,
    now: float,
    projects: Sequence[str] = (),
    expires_at: float | None = None,
) -> Token:
    """Keep a token by its hash. With `projects` it opens the runs of these only, with `expires_at` until then only."""
    token = Token(
        name=name,
        scope=scope,
        hash=token_hash,
        created_at=now,
        projects=list(dict.fromkeys(projects)),
        expires_at=expires_at,
    )
    session.add(token)
    session.flush()
    return token


def list_tokens(session: Session) -> Sequence[Token]:
    """All tokens ever made, oldest first."""
    return session.scalars(select(Token).order_by(Token.id)).all()


def describe_token(token: Token) -> dict[str, Any]:
    """What may be told of a token: all but its hash."""
    return {
        "id": token.id,
        "name": token.name,
        "scope": token.scope,
        "projects": token.projects,
        "created_at": iso(token.created_at),
        "expires_at": iso(token.expires_at),
        "last_used_at": iso(token.last_used_at),
        "revoked_at": iso(token.revoked_at),
    }


def find_token(asked: Session | Connection, token_hash: str, now: float) -> KnownToken | None:
    """The token of that hash, unless it was revoked or has expired."""
    return _known(_BY_HASH, asked, {"hash": token_hash, "now": now})


def get_token(asked: Session | Connection, token_id: int, now: float) -> KnownToken | None:
    """The token of that id, unless it was revoked or has expired."""
    return _known(_BY_ID, asked, {"id": token_id, "now": now})


def any_token(asked: Session | Connection) -> bool:
    """Whether a token was ever made: revoking the last one must not open the server to everybody."""
    return bool(_ANY.rows(_connection(asked), {}))


def revoke_token(session: Session, token_id: int, now: float) -> bool | None:
    """Revoke one; whether it was not revoked before, None for an unknown one."""
    if session.scalar(select(Token.id).where(Token.id == token_id)) is None:
        return None
    return _revoke(session, Token.id == token_id, now) == 1


def revoke_tokens(session: Session, name_or_id: str, now: float) -> int:
    """Revoke by name or id; how many that were not revoked before."""
    which = Token.name == name_or_id
    if name_or_id.isdecimal() and len(name_or_id) < 10:
        which = or_(which, Token.id == int(name_or_id))
    return _revoke(session, which, now)


def mark_used(session: Session, token_id: int, now: float) -> None:
    session.execute(update(Token).where(Token.id == token_id).values(last_used_at=now))


def _known(
    question: CompiledSelect, asked: Session | Connection, key: dict[str, Any]
) -> KnownToken | None:
    rows = question.rows(_connection(asked), key)
    return KnownToken(*rows[0]) if rows else None


def _connection(asked: Session | Connection) -> Connection:
    return asked.connection() if isinstance(asked, Session) else asked


def _revoke(session: Session, which: ColumnElement[bool], now: float) -> int:
    changed = session.execute(
        update(Token).where(which, Token.revoked_at.is_(None)).values(revoked_at=now)
    )
    return int(changed.rowcount)  # type: ignore[attr-defined]
