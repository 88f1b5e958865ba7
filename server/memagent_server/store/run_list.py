"""The list of runs: filtered, sorted, and paged by key, so that page 2,000 costs what page 1 does."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import String, cast, or_, select, tuple_
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent.errors import WireError
from memagent_server.store.models import Run

Sort = Literal["-created_at", "created_at"]

_SEARCHED = (Run.name, Run.id, Run.project, Run.user, Run.host)


@dataclass(frozen=True)
class RunQuery:
    """`q` is looked for in name, id, project, user, host and tags, in any case. `cursor` is a page's `next_cursor`."""

    project: str | None = None
    status: str | None = None
    q: str | None = None
    sort: Sort = "-created_at"
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True)
class RunPage:
    runs: Sequence[Run]
    next_cursor: str | None


def list_runs(session: Session, query: RunQuery) -> RunPage:
    """One page of runs. Raises WireError for a cursor that no page gave."""
    newest_first = query.sort.startswith("-")
    key = tuple_(Run.created_at, Run.id)
    statement = select(Run).where(*_filters(query)).limit(query.limit + 1)
    if query.cursor is not None:
        after = tuple_(*_read_cursor(query.cursor))
        statement = statement.where(key < after if newest_first else key > after)
    order = (Run.created_at.desc(), Run.id.desc()) if newest_first else (Run.created_at, Run.id)
    found = session.scalars(statement.order_by(*order)).all()
    page = found[: query.limit]
    return RunPage(page, _cursor(page[-1]) if len(found) > len(page) else None)


def _filters(query: RunQuery) -> list[ColumnElement[bool]]:
    filters: list[ColumnElement[bool]] = []
    if query.project is not None:
        filters.append(Run.project == query.project)
    if query.status is not None:
        filters.append(Run.status == query.status)
    if query.q:
        matches = [column.icontains(query.q, autoescape=True) for column in _SEARCHED]
        filters.append(or_(*matches, cast(Run.tags, String).icontains(query.q, autoescape=True)))
    return filters


def _cursor(run: Run) -> str:
    return base64.urlsafe_b64encode(f"{run.created_at!r} {run.id}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        created_at, run_id = (
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode().split(" ")
        )
        return float(created_at), run_id
    except (ValueError, binascii.Error) as error:
        raise WireError("cursor: no page gave this one", field="cursor") from error
