"""All runs in memory, column by column, for filters, orders and groups by any column.

Neither database can index every setting and scalar, and reading 100,000 configs takes a second. So
each process reads a column once, at the first request of it, and from then on only changes:

1. `RunRow.changed_at` has the time of a run's newest change, and `RunDeletionRow` deletions. Each
   request reads those of the last MARGIN_S again: a transaction may commit after a later one, and
   clocks of web processes may differ.
2. Columns that batches change (_LIVE_COLUMNS) are read again for runs that are running.
3. Columns never change (`coded_column`): a request reads its own, while others bring the table up
   to date.
4. Of more than MAX_TABLE_RUNS runs, the table has those that changed last. It keeps at most
   MAX_TABLE_COLUMNS and MAX_TABLE_BYTES of the columns that were asked for last.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent.filters.expression import RunColumn
from memagent_server.store.coded_column import CodedColumn, Key, RowMask, Rows, key_of
from memagent_server.store.errors import BusyError
from memagent_server.store.models import RunDeletionRow, RunRow
from memagent_server.store.project_scope import projects_of
from memagent_server.store.reading import text_keys
from memagent_server.store.run_keys import PEAK_BYTES, read_keys
from memagent_server.store.statements import upsert

MAX_TABLE_RUNS = 500_000
MAX_TABLE_COLUMNS = 64
MAX_TABLE_BYTES = 256 * 2**20
"""One column of 100,000 runs takes 0.4 to 12 MB, and 110 MB if all have different long texts."""
MAX_WAIT_S = 5.0
"""Time that a request waits for others that read columns; after that it must be sent again."""
MAX_LIVE = 2_000
"""Running runs whose live columns one request reads again; the next request goes on with others."""
MARGIN_S = 60.0
_KEPT_DELETIONS_S = 86_400.0
_INFO_KEY = "memagent_run_table"
PROJECT, STATUS = RunColumn("run", ("project",)), RunColumn("run", ("status",))
_FACTS = (RunRow.id, RunRow.changed_at, RunRow.project, RunRow.status, RunRow.is_archived)
_LIVE = (RunColumn("run", ("step",)), RunColumn("run", ("last_seen_at",)))
_LIVE_COLUMNS = {*_LIVE, RunColumn("run", ("peak_ratio",)), PEAK_BYTES}


@dataclass(frozen=True)
class TableView:
    """Runs by rising id, with the columns that were asked for."""

    ids: Sequence[str] = ()
    changed_at: Any = field(default_factory=lambda: np.empty(0))
    is_archived: RowMask = field(default_factory=lambda: np.empty(0, dtype=bool))
    columns: Mapping[RunColumn, CodedColumn] = field(default_factory=dict)
    others: Mapping[RunColumn, Mapping[str, Sequence[Key]]] = field(default_factory=dict)
    """Further values of runs with several: of ranks that log the same scalar."""
    is_whole: bool = True

    def row_of(self, run_id: str) -> int | None:
        """Return a run's place, None if it isn't there."""
        row = bisect_left(self.ids, run_id)
        return row if row < len(self.ids) and self.ids[row] == run_id else None


class RunTable:
    """The table of one process and database."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._view: TableView | None = None
        self._newest = 0.0
        self._read_at = 0.0
        # where the next request goes on, of more running runs than one reads
        self._next_live = 0

    def read(self, session: Session, columns: Collection[RunColumn]) -> TableView:
        """Return all runs as the session sees them, or later, with these columns.

        A session of some projects gets all runs, too: `visible_in` says which it may see. Raises
        BusyError.
        """
        wanted = {PROJECT, STATUS, *columns}
        if not self._lock.acquire(timeout=MAX_WAIT_S):
            raise BusyError("Other lists of runs are being read: retry later.")
        try:
            with Session(session.connection()) as everything:
                view = self._read(everything, wanted)
        finally:
            self._lock.release()
        return view

    def _read(self, session: Session, wanted: Collection[RunColumn]) -> TableView:
        view, now = self._view, time.time()
        # deletions are known for a day only
        if view is None or now - self._read_at > _KEPT_DELETIONS_S / 2:
            view = _load(session)
        else:
            # a clock that was ahead must not hide the changes of others
            view = self._changed(session, view, min(self._newest, now) - MARGIN_S)
        known = view.columns.keys()
        view = _with_columns(session, view, wanted)
        view = self._with_live_values(session, view, wanted)
        self._newest = float(view.changed_at.max(initial=0.0))
        self._view = view if view.columns.keys() == known else _bounded(view)
        self._read_at = now
        return view

    def _changed(self, session: Session, view: TableView, since: float) -> TableView:
        """Return the table with what has changed since a time."""
        if not view.is_whole:
            since = max(since, float(view.changed_at.min()))
        deletions = select(RunDeletionRow).where(RunDeletionRow.deleted_at >= since)
        ends = {row.run_id: row.deleted_at for row in session.scalars(deletions)}
        changes = select(*_FACTS).where(RunRow.changed_at >= since)
        facts = {row.id: row for row in session.execute(changes) if not _is_known(view, row)}
        removed = [
            view.row_of(run_id) for run_id, at in ends.items() if _is_older(view, run_id, at)
        ]
        view = _without(view, sorted(row for row in removed if row is not None))
        # to read many runs one by one takes longer than to read all
        if len(facts) > max(1_000, len(view.ids) // 4):
            return _load(session)
        return _newest(_updated(session, view, facts))

    def _with_live_values(
        self, session: Session, view: TableView, wanted: Collection[RunColumn]
    ) -> TableView:
        live = [column for column in wanted if column in _LIVE_COLUMNS or column.source == "scalar"]
        if not live:
            return view
        rows: list[int] = np.flatnonzero(view.columns[STATUS].mask("=", "running")).tolist()
        if len(rows) > MAX_LIVE:
            first = self._next_live % len(rows)
            rows = [*rows[first:], *rows[:first]][:MAX_LIVE]
            self._next_live += MAX_LIVE
        return _with_values(session, view, live, [view.ids[row] for row in rows])


def table_of(session: Session) -> RunTable:
    """Return the table of the session's database."""
    table: RunTable = session.info.setdefault(_INFO_KEY, RunTable())
    return table


def table_info(table: RunTable) -> dict[Any, Any]:
    """Return the `info` by which sessions share a table."""
    return {_INFO_KEY: table}


def visible_in(session: Session, view: TableView) -> RowMask:
    """Return the runs that a session may see."""
    projects = projects_of(session)
    if projects is None:
        return np.ones(len(view.ids), dtype=bool)
    masks = [view.columns[PROJECT].mask("=", project) for project in projects]
    return np.any(masks, axis=0) if masks else np.zeros(len(view.ids), dtype=bool)


def note_deletion(session: Session, run_id: str) -> None:
    """Record that a run was deleted, for as long as tables of other processes need it."""
    now = time.time()
    old = RunDeletionRow.deleted_at < now - _KEPT_DELETIONS_S
    session.execute(delete(RunDeletionRow).where(old))
    values = {"run_id": run_id, "deleted_at": now}
    upsert(session, RunDeletionRow, values, update=("deleted_at",))


def _load(session: Session) -> TableView:
    newest = select(*_FACTS).order_by(RunRow.changed_at.desc()).limit(MAX_TABLE_RUNS + 1)
    rows = session.execute(newest).all()
    view = TableView(is_whole=len(rows) <= MAX_TABLE_RUNS)
    return _with_facts(view, sorted(rows[:MAX_TABLE_RUNS], key=lambda row: row.id))


def _newest(view: TableView) -> TableView:
    """Return the table without the runs that are too many: those that changed first."""
    surplus = len(view.ids) - MAX_TABLE_RUNS
    if surplus <= 0:
        return view
    oldest = np.argsort(view.changed_at, kind="stable")[:surplus]
    return replace(_without(view, sorted(oldest.tolist())), is_whole=False)


def _with_facts(view: TableView, rows: Sequence[Any]) -> TableView:
    """Return an empty table with these runs, in order of their ids."""
    empty = CodedColumn.empty(len(rows))
    every = np.arange(len(rows))
    facts = {PROJECT: "project", STATUS: "status"}
    return replace(
        view,
        ids=[row.id for row in rows],
        changed_at=np.array([row.changed_at for row in rows]),
        is_archived=np.array([row.is_archived for row in rows], dtype=bool),
        columns={
            column: empty.changed(every, [key_of(getattr(row, name)) for row in rows])
            for column, name in facts.items()
        },
    )


def _is_known(view: TableView, fact: Any) -> bool:
    row = view.row_of(fact.id)
    return row is not None and view.changed_at[row] == fact.changed_at


def _is_older(view: TableView, run_id: str, deleted_at: float) -> bool:
    """Return True for a run that hasn't come back since its deletion."""
    row = view.row_of(run_id)
    return row is not None and view.changed_at[row] <= deleted_at


def _without(view: TableView, rows: Sequence[int]) -> TableView:
    if not rows:
        return view
    ids = list(view.ids)
    for row in reversed(rows):
        del ids[row]
    places = np.array(rows, dtype=np.int64)
    return replace(
        view,
        ids=ids,
        changed_at=np.delete(view.changed_at, places),
        is_archived=np.delete(view.is_archived, places),
        columns={name: column.removed(places) for name, column in view.columns.items()},
    )


def _updated(session: Session, view: TableView, facts: Mapping[str, Any]) -> TableView:
    """Return the table with new facts of runs, and the values of all its columns for them."""
    if not facts:
        return view
    view = _with_rows(view, sorted(run_id for run_id in facts if view.row_of(run_id) is None))
    rows = _rows(view, facts)
    changed_at, is_archived = view.changed_at.copy(), view.is_archived.copy()
    changed_at[rows] = [fact.changed_at for fact in facts.values()]
    is_archived[rows] = [fact.is_archived for fact in facts.values()]
    view = replace(view, changed_at=changed_at, is_archived=is_archived)
    return _with_values(session, view, view.columns, list(facts))


def _with_rows(view: TableView, new: Sequence[str]) -> TableView:
    """Return the table with new runs that have no values yet."""
    if not new:
        return view
    before = np.array([bisect_left(view.ids, run_id) for run_id in new], dtype=np.int64)
    return replace(
        view,
        ids=sorted([*view.ids, *new]),
        changed_at=np.insert(view.changed_at, before, 0.0),
        is_archived=np.insert(view.is_archived, before, False),
        columns={name: column.inserted(before) for name, column in view.columns.items()},
    )


def _with_columns(session: Session, view: TableView, wanted: Collection[RunColumn]) -> TableView:
    missing = [column for column in wanted if column not in view.columns]
    unchanged = {name: column for name, column in view.columns.items() if name not in wanted}
    empty = CodedColumn.empty(len(view.ids))
    # the newest last
    columns = {**unchanged, **{name: view.columns.get(name, empty) for name in wanted}}
    view = replace(view, columns=columns)
    return _with_values(session, view, missing, None) if missing else view


def _with_values(
    session: Session, view: TableView, columns: Iterable[RunColumn], run_ids: Collection[str] | None
) -> TableView:
    """Return the table with the stored values of columns, for some runs or for all."""
    chosen = list(columns)
    ids = view.ids if run_ids is None else run_ids
    if not chosen or not ids:
        return view
    some = None if run_ids is None else text_keys(session, ((run_id, 0) for run_id in ids))
    rows = np.arange(len(ids)) if run_ids is None else _rows(view, ids)
    # copies: other requests read the view meanwhile
    changed, others = dict(view.columns), dict(view.others)
    for column, values in read_keys(session, chosen, some).items():
        changed[column] = changed[column].changed(
            rows, [values.first.get(run_id) for run_id in ids]
        )
        rest = {} if run_ids is None else dict(others.get(column, {}))
        for run_id in ids if rest else ():
            rest.pop(run_id, None)
        others[column] = {**rest, **values.others}
    return replace(view, columns=changed, others=others)


def _rows(view: TableView, run_ids: Iterable[str]) -> Rows:
    """Return the places of runs that are all there."""
    return np.array([bisect_left(view.ids, run_id) for run_id in run_ids], dtype=np.int64)


def _bounded(view: TableView) -> TableView:
    """Return the table without the columns of the oldest requests."""
    names = {PROJECT, STATUS}
    room = MAX_TABLE_BYTES
    chosen = [name for name in view.columns if name not in names]
    for name in reversed(chosen[-MAX_TABLE_COLUMNS:]):
        room -= view.columns[name].size_bytes()
        if room < 0:
            break
        names.add(name)
    columns = {name: column for name, column in view.columns.items() if name in names}
    others = {name: values for name, values in view.others.items() if name in names}
    return replace(view, columns=columns, others=others)
