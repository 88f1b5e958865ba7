"""Public links, at most one for a run. Revoking one deletes its row; a new one has another id."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.orm import Session

from memagent_server.store.models import PublicLinkRow, RunRow

_ID_BYTES = 18


def link_of(session: Session, run_id: str, now: float) -> PublicLinkRow | None:
    """Return a run's link, None if it has none that is valid."""
    return session.scalar(
        select(PublicLinkRow).where(PublicLinkRow.run_id == run_id, _is_valid(now))
    )


def open_link(
    session: Session, run_id: str, *, by: str | None, now: float, expires_at: float | None
) -> PublicLinkRow:
    """Return the link of a locked run, with a new end; an expired one is replaced."""
    link = link_of(session, run_id, now)
    if link is None:
        close_link(session, run_id)
        secret = secrets.token_urlsafe(_ID_BYTES)
        link = PublicLinkRow(run_id=run_id, id=secret, created_at=now, created_by=by)
        session.add(link)
    link.expires_at = expires_at
    session.flush()
    return link


def close_link(session: Session, run_id: str) -> None:
    """Revoke a run's link, if it has one."""
    session.execute(delete(PublicLinkRow).where(PublicLinkRow.run_id == run_id))


def run_of_link(session: Session, link_id: str, now: float) -> str | None:
    """Return the id of the run that a valid link shows."""
    return session.scalar(
        select(PublicLinkRow.run_id).where(PublicLinkRow.id == link_id, _is_valid(now))
    )


def list_links(session: Session, now: float) -> Sequence[tuple[PublicLinkRow, RunRow]]:
    """Return the valid links with their runs, the newest first."""
    query = (
        select(PublicLinkRow, RunRow)
        .join(RunRow, RunRow.id == PublicLinkRow.run_id)
        .where(_is_valid(now))
        .order_by(PublicLinkRow.created_at.desc(), PublicLinkRow.run_id)
    )
    return [(link, run) for link, run in session.execute(query)]


def _is_valid(now: float) -> ColumnElement[bool]:
    return or_(PublicLinkRow.expires_at.is_(None), PublicLinkRow.expires_at > now)
