"""What is let go of with time: the samples of runs that ended long ago, and where somebody asks for it the runs themselves.

1. A chunk without samples has an empty `packed`. Its summary stays, so that charts of the run go on, in coarser points.
2. Only runs that have ended are touched, and each is looked at again under its lock: one that was resumed meanwhile keeps all it has.
3. Each transaction lets go of a bounded number of chunks. Whoever is interrupted has done what it did, and the next one goes on; two at
   once wait for each other run by run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, tuple_, update
from sqlalchemy.orm import Session

from memagent_server.store.engine import Database
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Chunk, Run, Stream
from memagent_server.store.runs import delete_run, lock_run

CHUNKS_AT_ONCE = 500
GONE = b""
"""What `packed` of a chunk is when its samples have been let go of."""

_HAS_SAMPLES = func.length(Chunk.packed) > 0  # both databases know a value's length without reading it


@dataclass(frozen=True)
class OldRun:
    """A run that ended long ago, with what its samples take up."""

    run_id: str
    project: str
    name: str
    chunks: int
    packed_bytes: int


def find_old(session: Session, before: float, *, project: str | None = None, whole: bool = False) -> list[OldRun]:
    """Runs that ended before `before` (seconds since the epoch), oldest first: those with samples, or where `whole`, all of them."""
    query = (
        select(
            Run.id, Run.project, Run.name, func.count(Chunk.seq), func.coalesce(func.sum(func.length(Chunk.packed)), 0)
        )
        .outerjoin(Stream, Stream.run_id == Run.id)
        .outerjoin(Chunk, (Chunk.stream_id == Stream.id) & _HAS_SAMPLES)
        .where(*_ended(before))
        .group_by(Run.id, Run.project, Run.name, Run.finished_at)
        .order_by(Run.finished_at, Run.id)
    )
    if project is not None:
        query = query.where(Run.project == project)
    if not whole:
        query = query.having(func.count(Chunk.seq) > 0)
    return [OldRun(run_id, of, name, chunks, int(size)) for run_id, of, name, chunks, size in session.execute(query)]


def drop_samples(database: Database, run_id: str, before: float) -> int:
    """Let go of the samples of a run that ended before `before`; how many chunks had some. Summaries stay."""
    dropped = 0
    while True:
        with database.write() as session:
            keys = _with_samples(session, run_id) if _is_old(session, run_id, before) else []
            if keys:
                session.execute(update(Chunk).where(tuple_(Chunk.stream_id, Chunk.seq).in_(keys)).values(packed=GONE))
        dropped += len(keys)
        if len(keys) < CHUNKS_AT_ONCE:
            return dropped


def drop_run(database: Database, run_id: str, before: float) -> bool:
    """Delete a run that ended before `before`, with everything that belongs to it; whether it was there."""
    with database.write() as session:
        return _is_old(session, run_id, before) and delete_run(session, run_id)


def _ended(before: float) -> tuple[ColumnElement[bool], ...]:
    return Run.finished_at < before, Run.status != "running"


def _is_old(session: Session, run_id: str, before: float) -> bool:
    """Locks the run's row, where there is one."""
    try:
        run = lock_run(session, run_id)
    except UnknownRunError:
        return False
    return run.status != "running" and run.finished_at is not None and run.finished_at < before


def _with_samples(session: Session, run_id: str) -> Sequence[tuple[int, int]]:
    query = (
        select(Chunk.stream_id, Chunk.seq)
        .join(Stream, Stream.id == Chunk.stream_id)
        .where(Stream.run_id == run_id, _HAS_SAMPLES)
    )
    return [(stream_id, seq) for stream_id, seq in session.execute(query.limit(CHUNKS_AT_ONCE))]
