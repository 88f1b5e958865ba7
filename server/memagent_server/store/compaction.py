"""Compaction: the small chunks that agents flush become chunks of UNIT_ROWS samples, and these become rollups.

1. A stream is cut anew from its place `compacted_seq` on, where enough has come in; all of it when its launch is over and quiet.
2. Samples keep their places (see `models.Chunk`), so readers that stand in the middle go on without missing or repeating one. Batches
   keep their rows: what is delivered twice is still known.
3. Compacted chunks are put into the rollups, many at a time, and lose their summaries.
4. Reading and packing happen outside of the transaction that writes. It locks the run as ingest does, and goes through only if the
   stream stands where it was read: of two workers one wins, the other has done it for nothing. Killed at any point, the next one goes on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from memagent.errors import WireError
from memagent_server.store.buckets import chunk_stats, from_stats
from memagent_server.store.chunks import pack_stats, unpack_stats
from memagent_server.store.engine import Database
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Chunk, Run, Stream
from memagent_server.store.packing import seal, unseal_arrays
from memagent_server.store.rechunk import UNIT_ROWS, Piece, cut
from memagent_server.store.rollups import RollupLevels
from memagent_server.store.runs import lock_run

log = logging.getLogger(__name__)

ROLLED_ROWS = 64 * UNIT_ROWS
"""A stream that goes on waits for so many before they are rolled up: the ends of all levels are packed anew each time."""
MOST_ROWS = 16 * UNIT_ROWS
"""What one transaction cuts; a single chunk that is larger is cut whole."""
MOST_ROLLED = 2_000
STREAMS_AT_ONCE = 100
QUIET_S = 60.0
"""A launch that is over may still send what it had left."""


@dataclass(frozen=True)
class Due:
    """A stream with something to do."""

    run_id: str
    stream_id: int
    samples: int
    compacted_seq: int
    rolled_seq: int
    is_over: bool


def compact_some(database: Database, now: float) -> bool:
    """One step for each of some streams; whether there was anything to do. Raises what the database raises."""
    with database.read() as session:
        found = find_due(session, now)
    random.shuffle(found)  # two workers rarely take the same one
    return sum(_guarded(database, due) for due in found) > 0


def _guarded(database: Database, due: Due) -> bool:
    """One stream that fails must not stop the others; a database that fails does."""
    try:
        return compact(database, due)
    except DBAPIError:
        raise
    except Exception:
        log.exception("stream %d of run %s could not be compacted", due.stream_id, due.run_id)
        return False


def finish(database: Database, run_id: str) -> None:
    """Compact and roll up all that a run has: to its end where it is over, else as far as it goes."""
    while True:
        with database.read() as session:
            found = find_due(session, inf, run_id)
        if not sum(compact(database, due) for due in found):
            return


def find_due(session: Session, now: float, run_id: str | None = None) -> list[Due]:
    """Some of the streams with something to do, of all runs or one."""
    is_over = and_(
        or_(Run.status != "running", ~Stream.is_current), Run.last_seen_at < now - QUIET_S
    )
    has_rows = Stream.samples - 1 - Stream.compacted_seq >= UNIT_ROWS
    has_units = Stream.compacted_seq - Stream.rolled_seq >= ROLLED_ROWS
    query = (
        select(Run.id, Stream.id, Stream.samples, Stream.compacted_seq, Stream.rolled_seq, is_over)
        .join(Run, Run.id == Stream.run_id)
        .where(~Stream.is_compacted, or_(is_over, has_rows, has_units))
    )
    if run_id is not None:
        query = query.where(Run.id == run_id)
    return [Due(*row[:5], bool(row[5])) for row in session.execute(query.limit(STREAMS_AT_ONCE))]


def compact(database: Database, due: Due) -> bool:
    """The next step for a stream, in one short transaction; whether it was made."""
    uncut, unrolled = due.samples - 1 - due.compacted_seq, due.compacted_seq - due.rolled_seq
    if unrolled >= ROLLED_ROWS or (due.is_over and unrolled and not uncut):
        return _roll_up(database, due)
    if uncut >= UNIT_ROWS or (due.is_over and uncut):
        return _cut_anew(database, due)
    return due.is_over and _write(database, due, lambda _: None, is_compacted=True)


def _cut_anew(database: Database, due: Due) -> bool:
    with database.read() as session:
        if not _stands(session, due):
            return False
        sources = list(_sources(session, due))
    if not sources:
        log.error(
            "stream %d of run %s misses samples from %d on",
            due.stream_id,
            due.run_id,
            due.compacted_seq + 1,
        )
        return _write(
            database, due, lambda _: None, compacted_seq=due.samples - 1, rolled_seq=due.samples - 1
        )
    is_end = due.is_over and sources[-1].seq == due.samples - 1
    pieces = [piece for piece in cut(sources) if piece.is_whole or is_end]
    if not pieces:
        return False
    last_seq = pieces[-1].seq
    straddler = next(
        (source for source in sources if source.seq > last_seq >= source.seq - source.rows + 1),
        None,
    )
    fresh = [_row(due, piece) for piece in pieces if not piece.stays]
    rest = _row(due, straddler.rest(last_seq)) if straddler is not None else None

    staying = [piece.seq for piece in pieces if piece.stays]

    def change(session: Session) -> None:
        session.execute(
            delete(Chunk).where(
                *_range(due, due.compacted_seq, last_seq), Chunk.seq.not_in(staying)
            )
        )
        if fresh:
            session.execute(insert(Chunk), fresh)
        if rest is not None:
            session.execute(update(Chunk).where(*_key(due), Chunk.seq == rest["seq"]).values(rest))

    return _write(database, due, change, compacted_seq=last_seq)


def _roll_up(database: Database, due: Due) -> bool:
    with database.read() as session:
        if not _stands(session, due):
            return False
        query = select(Chunk.seq, Chunk.rows, Chunk.stats).where(
            *_range(due, due.rolled_seq, due.compacted_seq)
        )
        found = session.execute(query.order_by(Chunk.seq).limit(MOST_ROLLED)).all()
        levels = RollupLevels(session, due.run_id, due.stream_id)
        levels.extend(from_stats((seq, rows, unpack_stats(stats)) for seq, rows, stats in found))
    last_seq = found[-1].seq if len(found) == MOST_ROLLED else due.compacted_seq

    def change(session: Session) -> None:
        levels.save(session)
        rolled = _range(due, due.rolled_seq, last_seq)
        session.execute(delete(Chunk).where(*rolled, ~_HAS_SAMPLES))
        session.execute(update(Chunk).where(*rolled).values(stats=b""))

    return _write(database, due, change, rolled_seq=last_seq)


def _write(database: Database, due: Due, change: Callable[[Session], None], **facts: Any) -> bool:
    """Change the stream and what belongs to it, if it stands where it was read."""
    with database.write() as session:
        try:
            run = lock_run(session, due.run_id)
        except UnknownRunError:  # it was deleted
            return False
        stands = [
            Stream.id == due.stream_id,
            Stream.run_id == due.run_id,
            Stream.compacted_seq == due.compacted_seq,
            Stream.rolled_seq == due.rolled_seq,
        ]
        if "is_compacted" in facts:
            stands.append(Stream.samples == due.samples)
        done = session.execute(
            update(Stream).where(*stands).values(facts).execution_options(synchronize_session=False)
        )
        if done.rowcount != 1:  # type: ignore[attr-defined]
            return False
        if "compacted_seq" in facts:
            run.keeps = "samples"  # of a run that had let go of all it had, and went on
        change(session)
        return True


def _stands(session: Session, due: Due) -> bool:
    """Whether the stream still stands where it was found."""
    query = select(Stream.compacted_seq, Stream.rolled_seq).where(
        Stream.id == due.stream_id, Stream.run_id == due.run_id
    )
    found = session.execute(query).first()
    return found is not None and tuple(found) == (due.compacted_seq, due.rolled_seq)


def _sources(session: Session, due: Due) -> Iterator[Piece]:
    """The chunks to cut, as pieces; about MOST_ROWS samples."""
    query = select(Chunk.seq, Chunk.rows, Chunk.received_at, Chunk.packed)
    query = query.where(*_key(due), Chunk.seq > due.compacted_seq).order_by(Chunk.seq)
    bounded = query.where(Chunk.seq <= due.compacted_seq + MOST_ROWS)
    found = session.execute(bounded).all() or session.execute(query.limit(1)).all()
    for row in found:
        yield _source(due, *row)


def _source(due: Due, seq: int, rows: int, received_at: float, packed: bytes) -> Piece:
    piece = Piece(rows=rows, seq=seq, received_at=received_at)
    if packed:
        try:
            piece.parts.append((unseal_arrays(packed), 0, rows))
        except WireError as error:
            log.error("chunk %d of stream %d stays as it is: %s", seq, due.stream_id, error)
    return piece


def _row(due: Due, piece: Piece) -> dict[str, Any]:
    columns = piece.columns()
    stats = chunk_stats(columns)
    return {
        "run_id": due.run_id,
        "stream_id": due.stream_id,
        "seq": piece.seq,
        "first_step": int(stats["step"][0] or 0),
        "last_step": int(stats["step"][1] or 0),
        "rows": piece.rows,
        "received_at": piece.received_at,
        "stats": pack_stats(stats),
        "packed": seal(columns),
    }


_HAS_SAMPLES = func.length(Chunk.packed) > 0


def _key(due: Due) -> Sequence[ColumnElement[bool]]:
    return Chunk.run_id == due.run_id, Chunk.stream_id == due.stream_id


def _range(due: Due, after_seq: int, last_seq: int) -> Sequence[ColumnElement[bool]]:
    return *_key(due), Chunk.seq > after_seq, Chunk.seq <= last_seq
