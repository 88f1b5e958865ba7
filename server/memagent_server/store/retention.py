"""What is let go of with time: samples after some days, rollups after many, and where somebody asks for it whole runs.

1. Samples go `retention_days` after their run ended; in a run that goes on, that long after they came in. Its rollups are made first, so
   that charts go on, in coarser points. With them go the rows of batches that are known to be there by their rank's next one.
2. Rollups go `rollup_days` after their run ended. The run's record, with all that people filter by, stays for good.
3. `Run.keeps` says what is left, so that nobody looks at a run again that has nothing to give.
4. A run that has ended is looked at again under its lock: one that was resumed meanwhile keeps all it has.
5. Each transaction deletes a bounded number of rows. Whoever is interrupted has done what it did, and the next one goes on; two at once
   wait for each other run by run.

What the store does for itself while nobody asks: compact what came in, and once a day let go of what is old.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, literal_column, select, tuple_
from sqlalchemy.orm import Session

from memagent.units import DAY_S
from memagent_server.store.compaction import compact_some, finish
from memagent_server.store.engine import Database
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Batch, Chunk, Rank, Rollup, Run, Stream
from memagent_server.store.models.samples import SAMPLE_TABLES, SampleTable, of_run
from memagent_server.store.runs import delete_run, lock_run

CHUNKS_AT_ONCE = 500
RUNS_AT_ONCE = 200


@dataclass(frozen=True)
class Old:
    """A run that has something to let go of: `what` is `samples`, `rollups` or `run`."""

    run_id: str
    project: str
    name: str
    what: str
    chunks: int
    packed_bytes: int


@dataclass(frozen=True)
class Limits:
    """Seconds since the epoch: what is older goes. None keeps all there is."""

    samples_before: float
    rollups_before: float | None = None


def find_old(
    session: Session,
    limits: Limits,
    *,
    project: str | None = None,
    whole: bool = False,
    sizes: bool = True,
) -> list[Old]:
    """Runs that have something older than the limits, oldest first; with `whole`, runs that ended before. Without `sizes` these are 0."""
    found: list[Old] = []
    if whole:
        wanted = [("run", _ended(limits.samples_before))]
    else:
        wanted = [
            ("samples", (*_ended(limits.samples_before), *_keeps("samples"))),
            ("samples", (Run.status == "running", Run.created_at < limits.samples_before)),
        ]
        if limits.rollups_before is not None:
            wanted.append(("rollups", (*_ended(limits.rollups_before), *_keeps("rollups"))))
    for what, filters in wanted:
        query = (
            select(Run.id, Run.project, Run.name, Run.status)
            .where(*filters)
            .order_by(Run.finished_at, Run.id)
        )
        if project is not None:
            query = query.where(Run.project == project)
        for run_id, of, name, status in session.execute(query):
            before = limits.samples_before if status == "running" else None
            chunks, packed_bytes = _size(session, what, run_id, before) if sizes else (0, 0)
            if chunks or status != "running" or not sizes:
                found.append(Old(run_id, of, name, what, chunks, packed_bytes))
    return found


def let_go(database: Database, old: Old, limits: Limits) -> bool:
    """Let go of what `find_old` found, if it still is old; whether anything went."""
    if old.what == "run":
        return drop_run(database, old.run_id, limits.samples_before)
    if old.what == "rollups":
        return limits.rollups_before is not None and drop_rollups(
            database, old.run_id, limits.rollups_before
        )
    return drop_samples(database, old.run_id, limits.samples_before) > 0


def drop_samples(database: Database, run_id: str, before: float) -> int:
    """Let go of the samples of a run that ended before `before`, or of those that came in before then if it goes on; how many chunks.

    Rollups stay, and are made first.
    """
    with database.read() as session:
        run = session.get(Run, run_id)
        is_running = run is not None and run.status == "running"
        if run is None or not (is_running or _has_ended(run, before)):
            return 0
    finish(database, run_id)

    def still(session: Session) -> Run | None:
        run = _locked(session, run_id)
        is_same = run is not None and (
            run.status == "running" if is_running else _has_ended(run, before)
        )
        return run if is_same else None

    def drop_chunks(session: Session) -> int:
        run = still(session)
        if run is None:
            return 0
        keys = _rolled_up(session, run_id, *((Chunk.received_at < before,) if is_running else ()))
        if keys:
            session.execute(
                delete(Chunk).where(
                    Chunk.run_id == run_id, tuple_(Chunk.stream_id, Chunk.seq).in_(keys)
                )
            )
        elif not is_running and not _left(session, Chunk, run_id):
            run.keeps = "rollups"
        return len(keys)

    def forget_batches(session: Session) -> int:
        keys = _taken(session, run_id, before) if still(session) is not None else []
        if keys:
            key = tuple_(Batch.rank, Batch.attempt, Batch.seq)
            session.execute(delete(Batch).where(Batch.run_id == run_id, key.in_(keys)))
        return len(keys)

    chunks = _until_done(database, drop_chunks)
    _until_done(database, forget_batches)
    return chunks


def drop_rollups(database: Database, run_id: str, before: float) -> bool:
    """Let go of all but the record of a run that ended before `before`; whether that was so."""
    with database.write() as session:
        run = _locked(session, run_id)
        if run is None or not _has_ended(run, before):
            return False
        for bulk in SAMPLE_TABLES:
            session.execute(delete(bulk).where(*of_run(bulk, run_id)))
        run.keeps = "record"
        return True


def drop_run(database: Database, run_id: str, before: float) -> bool:
    """Delete a run that ended before `before`, with everything that belongs to it; whether it was there."""
    with database.write() as session:
        run = _locked(session, run_id)
        return run is not None and _has_ended(run, before) and delete_run(session, run_id)


def _until_done(database: Database, delete_some: Callable[[Session], int]) -> int:
    done = 0
    while True:
        with database.write() as session:
            count = delete_some(session)
        done += count
        if not count:
            return done


def _ended(before: float) -> tuple[ColumnElement[bool], ...]:
    return Run.finished_at < before, Run.status != "running"


def _keeps(what: str) -> tuple[ColumnElement[bool], ...]:
    """What a run keeps; said so that SQLite sees that its partial index holds the answer."""
    return Run.keeps == what, Run.keeps != literal_column("'record'")


def _has_ended(run: Run, before: float) -> bool:
    return run.status != "running" and run.finished_at is not None and run.finished_at < before


def _locked(session: Session, run_id: str) -> Run | None:
    try:
        return lock_run(session, run_id)
    except UnknownRunError:
        return None


def _size(
    session: Session, what: str, run_id: str, received_before: float | None
) -> tuple[int, int]:
    """Rows and bytes of what would go."""
    rows, size = (0, 0) if what == "rollups" else _count(session, Chunk, run_id, received_before)
    rolled, rolled_size = (0, 0) if what == "samples" else _count(session, Rollup, run_id, None)
    return rolled if what == "rollups" else rows, size + rolled_size


def _count(
    session: Session, bulk: SampleTable, run_id: str, before: float | None
) -> tuple[int, int]:
    query = select(func.count(), func.coalesce(func.sum(func.length(bulk.packed)), 0)).where(
        *of_run(bulk, run_id)
    )
    if before is not None:
        query = query.where(Chunk.received_at < before)
    count, size = session.execute(query).one()
    return count, int(size)


def _rolled_up(
    session: Session, run_id: str, *filters: ColumnElement[bool]
) -> Sequence[tuple[int, int]]:
    query = (
        select(Chunk.stream_id, Chunk.seq)
        .join(Stream, Stream.id == Chunk.stream_id)
        .where(
            Chunk.run_id == run_id,
            Stream.run_id == run_id,
            Chunk.seq <= Stream.rolled_seq,
            *filters,
        )
    )
    return [(stream_id, seq) for stream_id, seq in session.execute(query.limit(CHUNKS_AT_ONCE))]


def _taken(session: Session, run_id: str, before: float) -> Sequence[tuple[int, int, int]]:
    """Batches whose rows are not needed: all that a rank sends up to its next one is known to be there."""
    query = (
        select(Batch.rank, Batch.attempt, Batch.seq)
        .join(
            Rank,
            (Rank.run_id == Batch.run_id)
            & (Rank.rank == Batch.rank)
            & (Rank.attempt == Batch.attempt),
        )
        .where(Batch.run_id == run_id, Batch.seq < Rank.next_seq, Batch.received_at < before)
    )
    return [
        (rank, attempt, seq) for rank, attempt, seq in session.execute(query.limit(CHUNKS_AT_ONCE))
    ]


def _left(session: Session, bulk: SampleTable, run_id: str) -> bool:
    return session.scalar(select(bulk.run_id).where(*of_run(bulk, run_id)).limit(1)) is not None


log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""After a look that found nothing."""


class Maintenance:
    """A turn at a time; `clock` gives seconds since the epoch."""

    def __init__(
        self,
        database: Database,
        retention_days: int,
        rollup_days: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._clock = database, clock
        self._retention_days, self._rollup_days = retention_days, rollup_days
        self._retained_at = self._idle_at = float("-inf")

    def turn(self) -> bool:
        """Returns whether there was anything to do. Raises what the database raises."""
        now = self._clock()
        if 0 <= now - self._idle_at < LOOK_EVERY_S:
            return False
        if now - self._retained_at >= DAY_S:
            self._retained_at = now
            self._retain(now)
        is_busy = compact_some(self._database, now)
        if not is_busy:
            self._idle_at = now
        return is_busy

    def _retain(self, now: float) -> None:
        limits = Limits(now - self._retention_days * DAY_S, now - self._rollup_days * DAY_S)
        with self._database.read() as session:
            found = find_old(session, limits, sizes=False)
        gone = sum([let_go(self._database, old, limits) for old in found])
        if gone:
            log.info("let go of samples older than %d or rollups older than %d days of %d runs",
                     self._retention_days, self._rollup_days, gone)  # fmt: skip
