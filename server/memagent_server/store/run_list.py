"""The list of runs: filters, order, pages by key, tags and the archive.

1. Archived runs and the others are two lists. Each order has an index that begins with
   `is_archived` and ends with the id.
2. A cursor is the key of a page's last run. A list by tag and time is read from the tags' index.
3. Tags are stored in the run's row, and again in a table to filter by.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import String, cast, delete, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, defer
from sqlalchemy.sql.elements import ColumnElement

from memagent_server.schemas.runs import RunPage
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Run, RunTag
from memagent_server.store.reading import decode_cursor, encode_cursor
from memagent_server.store.summaries import summarize

Sort = Literal["-created_at", "created_at", "name", "-name", "-peak_ratio", "peak_ratio"]
SORTS: tuple[Sort, ...] = get_args(Sort)
MAX_PROJECTS = 200
MAX_TAGS = 100

_SEARCHED = (Run.name, Run.id, Run.project, Run.user, Run.host)
_DEFERRED = (defer(Run.config), defer(Run.environment), defer(Run.error))
"""Columns that no list shows and that may be long."""
_KEYS: dict[str, tuple[InstrumentedAttribute[Any], type]] = {
    "created_at": (Run.created_at, float),
    "name": (Run.name, str),
    "peak_ratio": (Run.peak_ratio, float),
}


@dataclass(frozen=True)
class RunQuery:
    """Filters and order of a list. `q` is searched in name, id, project, user, host and tags,
    case-insensitive; `tag` matches exactly; `cursor` is a page's `next_cursor`."""

    project: str | None = None
    status: str | None = None
    tag: str | None = None
    q: str | None = None
    is_archived: bool = False
    sort: Sort = "-created_at"
    limit: int = 50
    cursor: str | None = None


def list_runs(session: Session, query: RunQuery, *, public_url: str = "") -> RunPage:
    """Return a page of runs. Raises WireError for a cursor of no page, or of another order."""
    rows, next_cursor = find_runs(session, query)
    return RunPage(summarize(session, rows, public_url=public_url), next_cursor)


def find_runs(session: Session, query: RunQuery) -> tuple[Sequence[Run], str | None]:
    """Return the rows of a page and the next page's cursor."""
    name = query.sort.removeprefix("-")
    is_falling = query.sort.startswith("-")
    column, kind = _KEYS[name]
    run_id: InstrumentedAttribute[str] = Run.id
    statement = select(Run).options(*_DEFERRED).where(*_filters(query)).limit(query.limit + 1)
    if query.tag is not None:
        statement = statement.join(RunTag, RunTag.run_id == Run.id).where(RunTag.tag == query.tag)
        if name == "created_at":
            column, run_id = RunTag.created_at, RunTag.run_id
    if query.cursor is not None:
        key, last = tuple_(column, run_id), tuple_(*decode_cursor(query.cursor, (kind, str)))
        statement = statement.where(key < last if is_falling else key > last)
    order = (column.desc(), run_id.desc()) if is_falling else (column, run_id)
    rows = session.scalars(statement.order_by(*order)).all()
    page = rows[: query.limit]
    has_more = len(rows) > len(page)
    return page, encode_cursor(page[-1], (_KEYS[name][0], Run.id)) if has_more else None


def list_projects(session: Session, *, is_archived: bool = False) -> list[str]:
    """Return the projects of a list by name, at most MAX_PROJECTS.

    Each costs one lookup in an index, for any number of runs.
    """
    projects: list[str] = []
    query = (
        select(Run.project).where(Run.is_archived.is_(is_archived)).order_by(Run.project).limit(1)
    )
    while len(projects) < MAX_PROJECTS:
        project = session.scalar(query.where(Run.project > projects[-1]) if projects else query)
        if project is None:
            break
        projects.append(project)
    return projects


def set_tags(session: Session, run: Run, tags: Iterable[str]) -> None:
    """Replace a run's tags: each once, in this order, at most MAX_TAGS. The run's row must be
    locked.
    """
    new_tags = list(dict.fromkeys(tags))[:MAX_TAGS]
    if new_tags == run.tags:
        return
    run.tags = new_tags
    stored = set(session.scalars(select(RunTag.tag).where(RunTag.run_id == run.id)))
    removed = stored - set(new_tags)
    session.execute(delete(RunTag).where(RunTag.run_id == run.id, RunTag.tag.in_(removed)))
    session.add_all(
        RunTag(run_id=run.id, tag=tag, created_at=run.created_at)
        for tag in new_tags
        if tag not in stored
    )


def change_tags(
    session: Session,
    run_ids: Collection[str],
    *,
    add: Collection[str] = (),
    remove: Collection[str] = (),
) -> None:
    """Add and remove tags of runs; from then on the agent's tags are ignored. Raises
    UnknownRunError.
    """
    for run in _lock_all(session, run_ids):
        run.are_tags_edited = True
        set_tags(session, run, (tag for tag in (*run.tags, *add) if tag not in remove))


def archive(session: Session, run_ids: Collection[str], *, is_archived: bool) -> None:
    """Archive runs, or restore them. Raises UnknownRunError."""
    for run in _lock_all(session, run_ids):
        run.is_archived = is_archived


def _lock_all(session: Session, run_ids: Collection[str]) -> list[Run]:
    """Lock the runs by id: two requests with the same runs can't deadlock."""
    query = select(Run).where(Run.id.in_(run_ids)).order_by(Run.id).with_for_update(key_share=True)
    runs = list(session.scalars(query.execution_options(populate_existing=True)))
    for run_id in run_ids:
        if run_id not in {run.id for run in runs}:
            raise UnknownRunError(run_id)
    return runs


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
