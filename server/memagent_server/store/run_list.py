"""The list of runs: filters, order and pages by key.

1. Archived runs and the others are two lists. Each order has an index that begins with
   `is_archived` and ends with the id.
2. A cursor is the key of a page's last run. A list by tag and time is read from the tags' index.
3. Tags are stored in the run's row, and again in a table to filter by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from typing import Any, Literal, get_args

from msgspec import json
from sqlalchemy import Select, String, Tuple, cast, func, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, defer
from sqlalchemy.sql.elements import ColumnElement

from memagent.filters.expression import Expression
from memagent_server.schemas.runs import RunPage
from memagent_server.store.models import RunRow, RunTagRow
from memagent_server.store.reading import decode_cursor, encode_cursor, encode_key
from memagent_server.store.run_filter import condition_of
from memagent_server.store.summaries import summarize

Sort = Literal["-created_at", "created_at", "name", "-name", "-peak_ratio", "peak_ratio"]
SORTS: tuple[Sort, ...] = get_args(Sort)
MAX_PROJECTS = 200
MAX_WORDS = 12
MAX_SEARCHED = 5_000
"""Runs whose texts one page of a search reads, in the list's order: no index can find the inside of
a word in both databases. 100,000 took 1.25 s; the next page goes on where one ended.
"""
_WORD = re.compile(r'"([^"]*)"|(\S+)')

_NAMES = (RunRow.name, RunRow.id, RunRow.project)
_SEARCHED = reduce(
    lambda text, column: text + " " + func.coalesce(column, ""),
    (RunRow.user, RunRow.host, cast(RunRow.tags, String), func.substr(RunRow.notes, 1, 500)),
    reduce(lambda text, column: text + " " + column, _NAMES[1:], _NAMES[0] + ""),
)
"""One text, so that a word costs one comparison."""
_DEFERRED = tuple(
    defer(column) for column in (RunRow.config, RunRow.environment, RunRow.error, RunRow.notes)
)
"""Columns that no list shows and that may be long."""
_KEYS: dict[str, tuple[InstrumentedAttribute[Any], type]] = {
    "created_at": (RunRow.created_at, float),
    "name": (RunRow.name, str),
    "peak_ratio": (RunRow.peak_ratio, float),
}


@dataclass(frozen=True)
class RunQuery:
    """Filters and order of a list; `tag` matches exactly; `cursor` is a page's `next_cursor`.

    Each word of `q` is searched in name, id, project, user, host, tags and notes, case-insensitive.
    A word such as `lr=0.001` also matches the config's value of that key, at any depth. `where` is
    a parsed filter.
    """

    project: str | None = None
    status: str | None = None
    tag: str | None = None
    q: str | None = None
    where: Expression | None = None
    is_archived: bool = False
    sort: Sort = "-created_at"
    limit: int = 50
    cursor: str | None = None


def list_runs(session: Session, query: RunQuery, *, public_url: str = "") -> RunPage:
    """Return a page of runs. Raises WireError for a cursor of no page, or of another order."""
    rows, next_cursor = find_runs(session, query)
    return RunPage(summarize(session, rows, public_url=public_url), next_cursor)


def find_runs(session: Session, query: RunQuery) -> tuple[Sequence[RunRow], str | None]:
    """Return the rows of a page and the next page's cursor.

    A page of a search has fewer rows than the limit, or none, if MAX_SEARCHED runs have no more.
    """
    listed, key = _list(query)
    words = words_of(query.q or "")
    end = _search_end(session, listed, key) if words else None
    if end is not None:
        last = tuple_(*end)
        listed = listed.where(key >= last if query.sort.startswith("-") else key <= last)
    listed = listed.where(*map(_matches, words))
    if query.where is not None:
        dialect = session.get_bind().dialect.name
        listed = listed.where(condition_of(query.where, dialect))
    rows = session.scalars(listed.options(*_DEFERRED).limit(query.limit + 1)).all()
    page = rows[: query.limit]
    if len(rows) > len(page):
        column, _ = _KEYS[query.sort.removeprefix("-")]
        return page, encode_cursor(page[-1], (column, RunRow.id))
    return page, None if end is None else encode_key(end)


def _list(query: RunQuery) -> tuple[Select[RunRow], Tuple]:
    """Return the runs in order, from the cursor on, without the conditions that read each run's
    text; and the key that orders them.
    """
    name = query.sort.removeprefix("-")
    is_falling = query.sort.startswith("-")
    column, kind = _KEYS[name]
    run_id: InstrumentedAttribute[str] = RunRow.id
    listed = select(RunRow).where(*_filters(query))
    if query.tag is not None:
        listed = listed.join(RunTagRow, RunTagRow.run_id == RunRow.id).where(
            RunTagRow.tag == query.tag
        )
        if name == "created_at":
            column, run_id = RunTagRow.created_at, RunTagRow.run_id
    key = tuple_(column, run_id)
    if query.cursor is not None:
        last = tuple_(*decode_cursor(query.cursor, (kind, str)))
        listed = listed.where(key < last if is_falling else key > last)
    order = (column.desc(), run_id.desc()) if is_falling else (column, run_id)
    return listed.order_by(*order), key


def _search_end(session: Session, listed: Select[RunRow], key: Tuple) -> Sequence[Any] | None:
    """Return the key of the last run that this page of a search reads, None for that of the list.

    Keys come from the index alone.
    """
    keys = listed.with_only_columns(*key.clauses).offset(MAX_SEARCHED - 1).limit(2)
    rows = session.execute(keys).all()
    return tuple(rows[0]) if len(rows) == 2 else None


def list_projects(session: Session, *, is_archived: bool = False) -> list[str]:
    """Return the projects of a list by name, at most MAX_PROJECTS.

    Each costs one lookup in an index, for any number of runs.
    """
    projects: list[str] = []
    query = (
        select(RunRow.project)
        .where(RunRow.is_archived.is_(is_archived))
        .order_by(RunRow.project)
        .limit(1)
    )
    while len(projects) < MAX_PROJECTS:
        project = session.scalar(query.where(RunRow.project > projects[-1]) if projects else query)
        if project is None:
            break
        projects.append(project)
    return projects


def _filters(query: RunQuery) -> list[ColumnElement[bool]]:
    filters: list[ColumnElement[bool]] = [RunRow.is_archived.is_(query.is_archived)]
    if query.project is not None:
        filters.append(RunRow.project == query.project)
    if query.status is not None:
        filters.append(RunRow.status == query.status)
    return filters


def words_of(text: str) -> list[str]:
    """Split a search into words, at most MAX_WORDS; quotes keep words together."""
    words = ("".join(parts) for parts in _WORD.findall(text))
    return [word for word in words if word][:MAX_WORDS]


def _matches(word: str) -> ColumnElement[bool]:
    is_named = _SEARCHED.icontains(word, autoescape=True)
    key, is_pair, value = word.partition("=")
    if not (is_pair and key and value):
        return is_named
    config = cast(RunRow.config, String)
    values = [json.encode(value).decode()[:-1]]  # a string that begins with it
    values += [number + end for number in _json_numbers(value) for end in ",}"]
    name = json.encode(key.rpartition(".")[2]).decode()
    pairs = [config.icontains(f"{name}:{text}", autoescape=True) for text in values]
    return or_(is_named, *pairs)


def _json_numbers(text: str) -> set[str]:
    """Return how a config's JSON may spell a number or a boolean; empty for other texts."""
    if text.lower() in ("true", "false"):
        return {text.lower()}
    try:
        number = float(text)
    except ValueError:
        return set()
    spellings = {json.encode(number).decode()} if isfinite(number) else set()
    if isfinite(number) and number.is_integer():
        spellings.add(str(int(number)))
    return spellings
