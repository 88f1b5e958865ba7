"""Saved views of the list of runs: its filters, order, columns and groups by a name.

A view belongs to a project, or to all by EVERY_PROJECT. Its query has parameters of the list's
address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import CursorResult, delete, func, select
from sqlalchemy.orm import Session

from memagent_server.schemas.run_groups import RunView
from memagent_server.store.errors import ConflictError
from memagent_server.store.models import RunViewRow
from memagent_server.store.reading import iso, to_schema
from memagent_server.store.rules import EVERY_PROJECT
from memagent_server.store.statements import insert_if_missing

MAX_VIEWS = 100
"""Views of a project: a page lists them all."""
MAX_LISTED = 1_000


def list_views(session: Session, project: str | None = None) -> list[RunView]:
    """Return the views of a project and those of every project, by name; without one, all."""
    query = select(RunViewRow).order_by(RunViewRow.name, RunViewRow.project).limit(MAX_LISTED)
    if project is not None:
        query = query.where(RunViewRow.project.in_((project, EVERY_PROJECT)))
    return [to_schema(RunView, row) for row in session.scalars(query)]


def save_view(
    session: Session,
    *,
    project: str,
    name: str,
    query: Mapping[str, Any],
    by: str | None,
    now: float,
    if_saved_at: str | None = None,
) -> RunView:
    """Add or replace a view.

    With `if_saved_at` only if that is when it was saved last, "" for never. Raises ConflictError.
    """
    of_project = RunViewRow.project == project
    count = session.scalar(select(func.count()).where(of_project)) or 0
    values = {"project": project, "name": name, "query": query, "saved_at": now, "saved_by": by}
    # PostgreSQL lets others read the row meanwhile, not save it
    find = select(RunViewRow).where(of_project, RunViewRow.name == name).with_for_update()
    row = session.scalar(find)
    if row is None and count >= MAX_VIEWS:
        raise ConflictError(f"The project {project!r} has {count} views: delete one first.")
    if row is None and not if_saved_at and insert_if_missing(session, RunViewRow, values):
        return to_schema(RunView, session.scalars(find).one())
    # another request may have been faster
    row = row or session.scalar(find)
    if row is None or (if_saved_at is not None and if_saved_at != iso(row.saved_at)):
        raise ConflictError(
            f"The view {name!r} was saved or deleted meanwhile: read it, then save again."
        )
    row.query = dict(query)
    row.saved_at = now
    row.saved_by = by
    session.flush()
    return to_schema(RunView, row)


def delete_view(session: Session, project: str, name: str) -> bool:
    """Delete a view; return False if there is none."""
    of_view = (RunViewRow.project == project, RunViewRow.name == name)
    result = session.execute(delete(RunViewRow).where(*of_view))
    assert isinstance(result, CursorResult)
    return bool(result.rowcount)
