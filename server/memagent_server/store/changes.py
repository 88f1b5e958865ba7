"""The audit log: who changed what by HTTP. Rows are kept for KEPT_S, and MAX_ROWS at most."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent_server.schemas.changes import Change, ChangePage, ValueChange
from memagent_server.store.models import ChangeRow
from memagent_server.store.reading import id_before, to_schema

KEPT_S = 365 * 86400.0
MAX_ROWS = 200_000
"""500 changes a day for a year: about 40 MB, and 400 MB if each has all values that it may.
Refused requests count too, so it needs a bound."""


def add_change(
    session: Session,
    *,
    name: str,
    email: str | None,
    method: str,
    route: str,
    subject: str,
    status: int,
    now: float,
    values: Sequence[ValueChange] = (),
) -> None:
    """Store a change, and forget those beyond the bounds."""
    change = ChangeRow(
        at=now,
        name=name[:200],
        email=email,
        method=method,
        route=route[:200],
        subject=subject[:200],
        status=status,
        values=msgspec.to_builtins(values),
    )
    session.add(change)
    session.flush()
    session.execute(delete(ChangeRow).where(ChangeRow.at < now - KEPT_S))
    session.execute(delete(ChangeRow).where(ChangeRow.id <= change.id - MAX_ROWS))


def list_changes(
    session: Session, *, limit: int, before_id: int | None = None
) -> Sequence[ChangeRow]:
    """Return changes, the newest first; with `before_id` those before one."""
    query = select(ChangeRow).order_by(ChangeRow.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(ChangeRow.id < before_id)
    return session.scalars(query).all()


def page_of_changes(session: Session, *, limit: int, cursor: str | None = None) -> ChangePage:
    """Return a page of changes, the newest first. Raises WireError for a bad cursor."""
    rows = list_changes(session, limit=limit + 1, before_id=id_before(cursor))
    page = [to_schema(Change, row) for row in rows[:limit]]
    return ChangePage(page, str(page[-1].id) if len(rows) > limit else None)
