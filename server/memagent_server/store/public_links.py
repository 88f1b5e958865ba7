"""Public links, at most one for a run. Revoking one deletes its row; a new one has another id."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import CursorResult, delete, or_, select
from sqlalchemy.orm import Session

from memagent_server.store.models import PublicLinkRow, RunRow

_ID_BYTES = 18


def link_of(session: Session, run_id: str) -> PublicLinkRow | None:
    """Return a run's link, expired or not."""
    return session.get(PublicLinkRow, run_id)


def open_link(
    session: Session, run_id: str, *, by: str | None, now: float, expires_at: float | None
) -> PublicLinkRow:
    """Return the link of a locked run, with a new end; an expired one is replaced."""
    link = link_of(session, run_id)
    if link is not None and link.expires_at is not None and link.expires_at <= now:
        session.delete(link)
        session.flush()
        link = None
    if link is None:
        secret = secrets.token_urlsafe(_ID_BYTES)
        link = PublicLinkRow(run_id=run_id, id=secret, created_at=now, created_by=by)
        session.add(link)
    link.expires_at = expires_at
    session.flush()
    return link


def close_link(session: Session, run_id: str) -> bool:
    """Revoke a run's link; return False if it has none."""
    result = session.execute(delete(PublicLinkRow).where(PublicLinkRow.run_id == run_id))
    assert isinstance(result, CursorResult)
    return bool(result.rowcount)


def run_of_link(session: Session, link_id: str, now: float) -> str | None:
    """Return the id of the run that a valid link shows."""
    is_valid = or_(PublicLinkRow.expires_at.is_(None), PublicLinkRow.expires_at > now)
    return session.scalar(select(PublicLinkRow.run_id).where(PublicLinkRow.id == link_id, is_valid))


def list_links(session: Session, now: float) -> Sequence[tuple[PublicLinkRow, RunRow]]:
    """Return the valid links with their runs, the newest first."""
    query = (
        select(PublicLinkRow, RunRow)
        .join(RunRow, RunRow.id == PublicLinkRow.run_id)
        .where(or_(PublicLinkRow.expires_at.is_(None), PublicLinkRow.expires_at > now))
        .order_by(PublicLinkRow.created_at.desc(), PublicLinkRow.run_id)
    )
    return [(link, run) for link, run in session.execute(query)]
