"""Retention: samples are deleted after some days, rollups after many, and whole runs on request.

1. Samples are deleted `retention_days` after their run ended, with the lines of its console; in a
   running run, that long after they were received. Their rollups are made first, so charts keep
   coarser points. The rows of batches before their rank's next one go with them.
2. Rollups are deleted `rollup_days` after their run ended. The run's record, with everything that
   people filter by, stays.
3. `RunRow.keeps` says what is left: a run with nothing to delete isn't read again.
4. An ended run is checked again under its lock: one that was resumed keeps everything.
5. Each transaction deletes a limited number of rows. After an interruption the next call continues;
   two calls at the same time wait for each other run by run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, delete, func, literal_column, select, tuple_
from sqlalchemy.orm import Session

from memagent.units import DAY_S
from memagent_server.store.compaction import compact_run, compact_some
from memagent_server.store.console import delete_lines
from memagent_server.store.engine import Database
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import BatchRow, ChunkRow, RankRow, RollupRow, RunRow, StreamRow
from memagent_server.store.models.samples import SAMPLE_TABLES, SampleTable, of_run
from memagent_server.store.runs import delete_run, lock_run

log = logging.getLogger(__name__)

MAX_DELETED_ROWS = 500
IDLE_S = 2.0
"""Pause of the maintenance after a turn that found nothing to do."""

Content = Literal["samples", "rollups", "run"]


@dataclass(frozen=True)
class PrunableRun:
    """A run that has `content` to delete."""

    run_id: str
    project: str
    name: str
    content: Content
    chunks: int
    packed_bytes: int


@dataclass(frozen=True)
class Limits:
    """UTC seconds since the epoch: what is older is deleted. None keeps everything."""

    samples_before: float
    rollups_before: float | None = None


class Maintenance:
    """Compacts new samples in each turn, and prunes old ones once a day."""

    def __init__(
        self,
        database: Database,
        retention_days: int,
        rollup_days: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._retention_days = retention_days
        self._rollup_days = rollup_days
        self._clock = clock
        self._pruned_at = float("-inf")
        self._idle_at = float("-inf")

    def turn(self) -> bool:
        """Return False if there was nothing to do. Raises what the database raises."""
        now = self._clock()
        # a negative age means that the clock was set back: it doesn't count as idle
        if 0 <= now - self._idle_at < IDLE_S:
            return False
        if now - self._pruned_at >= DAY_S:
            self._pruned_at = now
            self._prune(now)
        is_busy = compact_some(self._database, now)
        if not is_busy:
            self._idle_at = now
        return is_busy

    def _prune(self, now: float) -> None:
        limits = Limits(now - self._retention_days * DAY_S, now - self._rollup_days * DAY_S)
        with self._database.read() as session:
            runs = find_prunable(session, limits, sizes=False)
        pruned = sum([prune(self._database, run, limits) for run in runs])
        if pruned:
            log.info(
                "deleted samples older than %d or rollups older than %d days of %d runs",
                self._retention_days,
                self._rollup_days,
                pruned,
            )


def find_prunable(
    session: Session,
    limits: Limits,
    *,
    project: str | None = None,
    whole: bool = False,
    sizes: bool = True,
) -> list[PrunableRun]:
    """Return the runs with something older than the limits, oldest first.

    With `whole`, these are the runs that ended before `samples_before`. Without `sizes`, chunks and
    bytes are 0, which is faster.
    """
    conditions: list[tuple[Content, Sequence[ColumnElement[bool]]]]
    if whole:
        conditions = [("run", _ended(limits.samples_before))]
    else:
        is_old = (RunRow.status == "running", RunRow.created_at < limits.samples_before)
        conditions = [
            ("samples", (*_ended(limits.samples_before), *_keeps("samples"))),
            ("samples", is_old),
        ]
        if limits.rollups_before is not None:
            conditions.append(("rollups", (*_ended(limits.rollups_before), *_keeps("rollups"))))
    prunable: list[PrunableRun] = []
    for content, condition in conditions:
        query = select(RunRow.id, RunRow.project, RunRow.name, RunRow.status).where(*condition)
        if project is not None:
            query = query.where(RunRow.project == project)
        rows = session.execute(query.order_by(RunRow.finished_at, RunRow.id))
        for run_id, run_project, name, status in rows:
            before = limits.samples_before if status == "running" else None
            size = _size(session, content, run_id, before) if sizes else (0, 0)
            if size[0] or status != "running" or not sizes:
                prunable.append(PrunableRun(run_id, run_project, name, content, *size))
    return prunable


def prune(database: Database, run: PrunableRun, limits: Limits) -> bool:
    """Delete what `find_prunable` found, if it's still old; return True if anything was deleted."""
    if run.content == "run":
        return delete_ended_run(database, run.run_id, limits.samples_before)
    if run.content == "samples":
        return delete_samples(database, run.run_id, limits.samples_before) > 0
    before = limits.rollups_before
    return before is not None and delete_rollups(database, run.run_id, before)


def delete_samples(database: Database, run_id: str, before: float) -> int:
    """Delete a run's samples; return the number of chunks.

    Of a run that ended before `before` all are deleted, of a running one those received before
    then.
    Rollups are made first and stay.
    """
    with database.read() as session:
        run = session.get(RunRow, run_id)
        is_running = run is not None and run.status == "running"
        if run is None or not (is_running or _has_ended(run, before)):
            return 0
    # rollups first: what they don't cover is not deleted below
    compact_run(database, run_id)

    def lock_if_unchanged(session: Session) -> RunRow | None:
        run = _lock(session, run_id)
        if run is None:
            return None
        is_same = run.status == "running" if is_running else _has_ended(run, before)
        return run if is_same else None

    def delete_chunks(session: Session) -> int:
        run = lock_if_unchanged(session)
        if run is None:
            return 0
        # keys first: DELETE with LIMIT is not standard SQL
        keys = _rolled_up(
            session, run_id, *((ChunkRow.received_at < before,) if is_running else ())
        )
        if keys:
            is_key = tuple_(ChunkRow.stream_id, ChunkRow.seq).in_(keys)
            session.execute(delete(ChunkRow).where(ChunkRow.run_id == run_id, is_key))
        elif not is_running:
            query = select(ChunkRow.run_id).where(*of_run(ChunkRow, run_id))
            if session.scalar(query.limit(1)) is None:
                # only once no chunk is left, so that an interrupted deletion is continued
                run.keeps = "rollups"
                delete_lines(session, run_id)
        return len(keys)

    def delete_batches(session: Session) -> int:
        if lock_if_unchanged(session) is None:
            return 0
        keys = _delivered_batches(session, run_id, before)
        if keys:
            key = tuple_(BatchRow.rank, BatchRow.attempt, BatchRow.seq)
            session.execute(delete(BatchRow).where(BatchRow.run_id == run_id, key.in_(keys)))
        return len(keys)

    chunks = _repeat(database, delete_chunks)
    _repeat(database, delete_batches)
    return chunks


def delete_rollups(database: Database, run_id: str, before: float) -> bool:
    """Delete everything but the record of a run; return False unless it ended before `before`."""
    with database.write() as session:
        run = _lock(session, run_id)
        if run is None or not _has_ended(run, before):
            return False
        for table in SAMPLE_TABLES:
            session.execute(delete(table).where(*of_run(table, run_id)))
        run.keeps = "record"
        return True


def delete_ended_run(database: Database, run_id: str, before: float) -> bool:
    """Delete a run that ended before `before`, with everything that belongs to it."""
    with database.write() as session:
        run = _lock(session, run_id)
        return run is not None and _has_ended(run, before) and delete_run(session, run_id)


def _repeat(database: Database, delete_some: Callable[[Session], int]) -> int:
    """Call `delete_some` in one transaction after another until it deletes nothing."""
    total = 0
    while True:
        with database.write() as session:
            count = delete_some(session)
        total += count
        if not count:
            return total


def _ended(before: float) -> tuple[ColumnElement[bool], ...]:
    return RunRow.finished_at < before, RunRow.status != "running"


def _keeps(content: str) -> tuple[ColumnElement[bool], ...]:
    # the second condition shows SQLite that its partial index applies
    return RunRow.keeps == content, RunRow.keeps != literal_column("'record'")


def _has_ended(run: RunRow, before: float) -> bool:
    return run.status != "running" and run.finished_at is not None and run.finished_at < before


def _lock(session: Session, run_id: str) -> RunRow | None:
    try:
        return lock_run(session, run_id)
    except UnknownRunError:
        return None


def _size(
    session: Session, content: Content, run_id: str, received_before: float | None
) -> tuple[int, int]:
    """Return the rows and bytes that would be deleted."""
    if content == "rollups":
        return _count(session, RollupRow, run_id, None)
    chunks, chunk_bytes = _count(session, ChunkRow, run_id, received_before)
    rollup_bytes = 0 if content == "samples" else _count(session, RollupRow, run_id, None)[1]
    return chunks, chunk_bytes + rollup_bytes


def _count(
    session: Session, table: SampleTable, run_id: str, received_before: float | None
) -> tuple[int, int]:
    query = select(func.count(), func.coalesce(func.sum(func.length(table.packed)), 0))
    query = query.where(*of_run(table, run_id))
    if received_before is not None:
        query = query.where(ChunkRow.received_at < received_before)
    count, size = session.execute(query).one()
    return count, int(size)


def _rolled_up(
    session: Session, run_id: str, *conditions: ColumnElement[bool]
) -> Sequence[tuple[int, int]]:
    """Return the keys of some chunks that the rollups cover."""
    query = (
        select(ChunkRow.stream_id, ChunkRow.seq)
        .join(StreamRow, StreamRow.id == ChunkRow.stream_id)
        .where(
            ChunkRow.run_id == run_id,
            StreamRow.run_id == run_id,
            ChunkRow.seq <= StreamRow.rolled_seq,
            *conditions,
        )
        .limit(MAX_DELETED_ROWS)
    )
    return [(stream_id, seq) for stream_id, seq in session.execute(query)]


def _delivered_batches(
    session: Session, run_id: str, before: float
) -> Sequence[tuple[int, int, int]]:
    """Return some batches before their rank's next one: that one shows that they are stored."""
    query = (
        select(BatchRow.rank, BatchRow.attempt, BatchRow.seq)
        .join(
            RankRow,
            (RankRow.run_id == BatchRow.run_id)
            & (RankRow.rank == BatchRow.rank)
            & (RankRow.attempt == BatchRow.attempt),
        )
        .where(
            BatchRow.run_id == run_id,
            BatchRow.seq < RankRow.next_seq,
            BatchRow.received_at < before,
        )
        .limit(MAX_DELETED_ROWS)
    )
    return [(rank, attempt, seq) for rank, attempt, seq in session.execute(query)]
