"""Access tokens: made, listed, looked up by their keyed hash, revoked. The token itself is never stored."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from memagent_server.store.models import Token

SCOPES = ("ingest", "read", "admin")


def add_token(session: Session, name: str, scope: str, token_hash: str, now: float) -> Token:
    token = Token(name=name, scope=scope, hash=token_hash, created_at=now)
    session.add(token)
    session.flush()
    return token


def list_tokens(session: Session) -> Sequence[Token]:
    """All tokens ever made, oldest first."""
    return session.scalars(select(Token).order_by(Token.id)).all()


def find_token(session: Session, token_hash: str) -> Token | None:
    """The token of that hash, unless it has been revoked."""
    return session.scalar(select(Token).where(Token.hash == token_hash, Token.revoked_at.is_(None)))


def get_token(session: Session, token_id: int) -> Token | None:
    """The token of that id, unless it has been revoked."""
    token = session.get(Token, token_id)
    return token if token is not None and token.revoked_at is None else None


def any_token(session: Session) -> bool:
    """Whether a token was ever made: revoking the last one must not open the server to everybody."""
    return session.scalar(select(Token.id).limit(1)) is not None


def revoke_tokens(session: Session, name_or_id: str, now: float) -> int:
    """Revoke by name or id; how many that were valid until now."""
    which = Token.name == name_or_id
    if name_or_id.isdecimal() and len(name_or_id) < 10:
        which = or_(which, Token.id == int(name_or_id))
    return int(session.execute(update(Token).where(which, Token.revoked_at.is_(None)).values(revoked_at=now)).rowcount)  # type: ignore[attr-defined]


def mark_used(session: Session, token_id: int, now: float) -> None:
    session.execute(update(Token).where(Token.id == token_id).values(last_used_at=now))
