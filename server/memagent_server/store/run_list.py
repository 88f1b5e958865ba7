"""The list of runs: filters, order and pages by key.

1. Archived runs and the others are two lists. Each order of INDEXED has an index that begins with
   `is_archived` and ends with the id.
2. A cursor is the key of a page's last run. A list by tag and time is read from the tags' index.
3. Tags are stored in the run's row, and again in a table to filter by.
4. Filters and orders by other columns come from the table in memory (`run_table`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from typing import Any

from msgspec import json
from msgspec.structs import asdict
from sqlalchemy import Select, String, Tuple, cast, func, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, defer
from sqlalchemy.sql.elements import ColumnElement

from memagent.filters.columns import order_of
from memagent.filters.expression import Condition, Expression, RunColumn
from memagent_server.schemas.runs import ListedRun, RunPage, RunSummary
from memagent_server.store.coded_column import RowMask
from memagent_server.store.models import RunRow, RunTagRow
from memagent_server.store.reading import decode_cursor, encode_cursor, encode_key, text_keys
from memagent_server.store.run_columns import ColumnTable, column_table
from memagent_server.store.run_filter import condition_of
from memagent_server.store.run_table import TableView, table_of, visible_in
from memagent_server.store.summaries import summarize
from memagent_server.store.table_query import columns_of, cursor_after, filter_mask, page_rows

INDEXED = ("-created_at", "created_at", "name", "-name", "-peak_ratio", "peak_ratio")
"""Orders that an index has."""
MAX_PROJECTS = 200
MAX_WORDS = 12
MAX_SEARCHED = 5_000
"""Runs whose texts one page of a search reads, in the list's order: no index can find the inside of
a word in both databases. 100,000 took 1.25 s; the next page continues.
"""
MAX_COUNTED = 10_000
"""Runs that a list counts at most."""
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
    a parsed filter. `sort` is the name of a column, after "-" if the highest comes first.
    """

    project: str | None = None
    status: str | None = None
    tag: str | None = None
    q: str | None = None
    where: Expression | None = None
    is_archived: bool = False
    sort: str = "-created_at"
    limit: int = 50
    cursor: str | None = None


def list_runs(
    session: Session, query: RunQuery, *, columns: str = "", public_url: str = ""
) -> RunPage:
    """Return a page of runs, with the values of the named columns.

    Raises WireError for a cursor of no page, or of another order, and FilterError for a column that
    isn't there.
    """
    rows, next_cursor = find_runs(session, query)
    table = column_table(session, [run.id for run in rows], columns)
    runs = summarize(session, rows, public_url=public_url)
    return RunPage([_with_columns(run, table) for run in runs], next_cursor)


def _with_columns(run: RunSummary, table: ColumnTable) -> ListedRun:
    values = dict(zip(table.names, table.values.get(run.id, ()), strict=False))
    return ListedRun(**asdict(run), columns=values)


def find_runs(session: Session, query: RunQuery) -> tuple[Sequence[RunRow], str | None]:
    """Return the rows of a page and the next page's cursor.

    A page of a search has fewer rows than the limit, or none, if MAX_SEARCHED runs have no more.
    """
    if query.where is not None or query.sort not in INDEXED:
        result = _find_in_table(session, query)
        if result is not None:
            return result
    listed, key = _list(query)
    words = words_of(query.q or "")
    end = _search_end(session, listed, key) if words else None
    if end is not None:
        last = tuple_(*end)
        listed = listed.where(key >= last if query.sort.startswith("-") else key <= last)
    listed = listed.where(*map(_matches, words))
    if query.where is not None:
        # more runs than the table has
        listed = listed.where(condition_of(query.where, session.get_bind().dialect.name))
    rows = session.scalars(listed.options(*_DEFERRED).limit(query.limit + 1)).all()
    page = rows[: query.limit]
    if len(rows) > len(page):
        column, _ = _KEYS[query.sort.removeprefix("-")]
        return page, encode_cursor(page[-1], (column, RunRow.id))
    return page, None if end is None else encode_key(end)


def count_runs(session: Session, query: RunQuery) -> int | None:
    """Return the number of runs on all pages of a list, without `where` MAX_COUNTED + 1 at most.

    None for a search, which reads a part of the runs for each page.
    """
    if query.q:
        return None
    if query.where is not None:
        view, mask = select_runs(session, query, [])
        return int(mask.sum()) if view.is_whole else None
    listed = select(RunRow.id).where(*_filters(query))
    if query.tag is not None:
        listed = listed.join(RunTagRow, RunTagRow.run_id == RunRow.id).where(
            RunTagRow.tag == query.tag
        )
    counted = listed.limit(MAX_COUNTED + 1).subquery()
    return session.scalar(select(func.count()).select_from(counted)) or 0


def select_runs(
    session: Session, query: RunQuery, columns: Collection[RunColumn]
) -> tuple[TableView, RowMask]:
    """Return the table of runs with these columns, and the runs that the query's filters select.

    `tag` is one, `q` is not.
    """
    equal = {"project": query.project, "status": query.status}
    terms: list[Expression] = [
        Condition(RunColumn("run", (name,)), "=", value)
        for name, value in {**equal, "tags": query.tag}.items()
        if value is not None
    ]
    terms += [query.where] if query.where is not None else []
    needed = {column for term in terms for column in columns_of(term)}
    view = table_of(session).read(session, {*needed, *columns})
    mask = visible_in(session, view) & (view.is_archived == query.is_archived)
    for term in terms:
        mask &= filter_mask(view, term)
    return view, mask


def search_runs(session: Session, run_ids: Sequence[str], words: Sequence[str]) -> set[str]:
    """Return those of some runs that a search finds."""
    ids = text_keys(session, ((run_id, 0) for run_id in run_ids))
    matches = select(RunRow.id).where(RunRow.id.in_(select(ids.c.first)), *map(_matches, words))
    return set(session.scalars(matches))


def _find_in_table(session: Session, query: RunQuery) -> tuple[Sequence[RunRow], str | None] | None:
    """Return a page from the table of runs; None for an indexed order of more runs than it has."""
    column, is_falling = order_of(query.sort)
    view, mask = select_runs(session, query, [column])
    if query.sort in INDEXED and not view.is_whole:
        return None
    words = words_of(query.q or "")
    most = MAX_SEARCHED if words else query.limit
    rows = page_rows(view, mask, column, is_falling=is_falling, cursor=query.cursor, limit=most + 1)
    is_end, read = len(rows) <= most, rows[:most]
    page, last = read, read[-1:]
    if words:
        matches = search_runs(session, [view.ids[row] for row in read], words)
        page = [row for row in read if view.ids[row] in matches]
    if len(page) > query.limit:
        page, last, is_end = page[: query.limit], page[query.limit - 1 : query.limit], False
    runs = stored_runs(session, [view.ids[row] for row in page])
    return runs, None if is_end or not last else cursor_after(view, column, last[0])


def stored_runs(session: Session, run_ids: Sequence[str]) -> list[RunRow]:
    """Return the rows of runs for a list, in this order; those that are gone are left out."""
    rows = session.scalars(select(RunRow).where(RunRow.id.in_(run_ids)).options(*_DEFERRED))
    by_id = {run.id: run for run in rows}
    return [by_id[run_id] for run_id in run_ids if run_id in by_id]


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
