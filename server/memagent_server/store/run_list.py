"""The list of runs: filtered, sorted, and paged by key, so that page 2,000 costs what page 1 does.

1. Archived runs and the others are two lists. Each order has an index that begins with `is_archived` and ends with the id.
2. A cursor is the key of a page's last run. A list by tag is read from the tags' own index, where it is by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import String, cast, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, defer
from sqlalchemy.sql.elements import ColumnElement

from memagent_server.store.models import Run, RunTag
from memagent_server.store.paging import read_key, write_key

Sort = Literal["-created_at", "created_at", "name", "-name", "-peak_ratio", "peak_ratio"]
MOST_PROJECTS = 200
SORTS: tuple[Sort, ...] = get_args(Sort)

_SEARCHED = (Run.name, Run.id, Run.project, Run.user, Run.host)
_LEAVING_OUT = (defer(Run.config), defer(Run.environment), defer(Run.error))
"""What a list shows of no run, and what may be long."""
_KEYS: dict[str, tuple[InstrumentedAttribute[Any], type]] = {
    "created_at": (Run.created_at, float),
    "name": (Run.name, str),
    "peak_ratio": (Run.peak_ratio, float),
}


@dataclass(frozen=True)
class RunQuery:
    """`q` is looked for in name, id, project, user, host, tags, in any case; `tag` is a whole one; `cursor` a page's `next_cursor`."""

    project: str | None = None
    status: str | None = None
    tag: str | None = None
    q: str | None = None
    is_archived: bool = False
    sort: Sort = "-created_at"
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True)
class RunPage:
    runs: Sequence[Run]
    next_cursor: str | None


def list_runs(session: Session, query: RunQuery) -> RunPage:
    """One page of runs. Raises WireError for a cursor that no page in this order gave."""
    name = query.sort.removeprefix("-")
    column, kind = _KEYS[name]
    statement = select(Run).options(*_LEAVING_OUT).where(*_filters(query)).limit(query.limit + 1)
    identifier: InstrumentedAttribute[str] = Run.id
    if query.tag is not None:
        statement = statement.join(RunTag, RunTag.run_id == Run.id).where(RunTag.tag == query.tag)
        if name == "created_at":
            column, identifier = RunTag.created_at, RunTag.run_id
    if query.cursor is not None:
        key, after = tuple_(column, identifier), tuple_(*read_key(query.cursor, (kind, str)))
        statement = statement.where(key < after if query.sort.startswith("-") else key > after)
    order = (
        (column.desc(), identifier.desc()) if query.sort.startswith("-") else (column, identifier)
    )
    found = session.scalars(statement.order_by(*order)).all()
    page = found[: query.limit]
    return RunPage(
        page, write_key(page[-1], (_KEYS[name][0], Run.id)) if len(found) > len(page) else None
    )


def list_projects(session: Session, *, is_archived: bool = False) -> list[str]:
    """The projects of a list by name, at most MOST_PROJECTS; each costs one look into an index, however many runs it has."""
    found: list[str] = []
    query = (
        select(Run.project).where(Run.is_archived.is_(is_archived)).order_by(Run.project).limit(1)
    )
    while len(found) < MOST_PROJECTS:
        project = session.scalar(query if not found else query.where(Run.project > found[-1]))
        if project is None:
            break
        found.append(project)
    return found


def _filters(query: RunQuery) -> list[ColumnElement[bool]]:
    filters: list[ColumnElement[bool]] = [Run.is_archived.is_(query.is_archived)]
    if query.project is not None:
        filters.append(Run.project == query.project)
    if query.status is not None:
        filters.append(Run.status == query.status)
    if query.q:
        matches = [column.icontains(query.q, autoescape=True) for column in _SEARCHED]
        filters.append(or_(*matches, cast(Run.tags, String).icontains(query.q, autoescape=True)))
    return filters
