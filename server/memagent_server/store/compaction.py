"""Compaction: the small chunks that agents send become chunks of UNIT_ROWS samples, and these
rollups.

1. A stream is re-chunked from its position `compacted_seq` on when enough samples have arrived, and
   completely when its launch is over and quiet.
2. Samples keep their positions (see `models.ChunkRow`), so a reader in the middle neither misses
   nor repeats one. Batches keep their rows, so a second delivery is still recognized.
3. Compacted chunks are added to the rollups, many at a time, and lose their statistics.
4. Reading and packing happen outside of the transaction that writes. It locks the run as ingest
   does, and goes through only if the stream is unchanged: of two workers one wins. Killed at any
   point, the next one continues.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from memagent.arrays.stored_chunks import unseal_arrays
from memagent.errors import WireError
from memagent_server.store.buckets import chunk_stats, from_stats
from memagent_server.store.chunks import pack_stats, unpack_stats
from memagent_server.store.engine import Database
from memagent_server.store.models import ChunkRow, RunRow, StreamRow
from memagent_server.store.packing import UNIT_ROWS, SampleRange, rechunk, seal
from memagent_server.store.rollups import RollupLevels
from memagent_server.store.statements import CompiledSelect, compile_insert

log = logging.getLogger(__name__)

_CHUNK_COLUMNS = (
    *("run_id", "stream_id", "seq", "first_step", "last_step"),
    *("rows", "received_at", "stats", "packed"),
)
# constants: building and caching statements took as long as packing the samples
_of_stream = (ChunkRow.run_id == bindparam("run"), ChunkRow.stream_id == bindparam("stream"))
_positions: tuple[Any, ...] = (StreamRow.compacted_seq, StreamRow.rolled_seq)
_SELECT_POSITIONS = CompiledSelect(
    select(*_positions).where(
        StreamRow.id == bindparam("stream"), StreamRow.run_id == bindparam("run")
    )
)
_source: tuple[Any, ...] = (ChunkRow.seq, ChunkRow.rows, ChunkRow.received_at, ChunkRow.packed)
_source_rows = (
    select(*_source).where(*_of_stream, ChunkRow.seq > bindparam("after")).order_by(ChunkRow.seq)
)
_SELECT_SOURCES = CompiledSelect(_source_rows.where(ChunkRow.seq <= bindparam("last")))
_SELECT_SOURCE = CompiledSelect(_source_rows.limit(1))
_LOCK_RUN = select(RunRow.id).where(RunRow.id == bindparam("run")).with_for_update(key_share=True)
_KEEP_SAMPLES = (
    update(RunRow)
    .where(RunRow.id == bindparam("run"), RunRow.keeps != "samples")
    .values(keeps="samples")
)
_DELETE_CHUNKS = delete(ChunkRow).where(
    *_of_stream, ChunkRow.seq > bindparam("after"), ChunkRow.seq <= bindparam("last")
)
_ADD_CHUNK = compile_insert(ChunkRow, *_CHUNK_COLUMNS)

MIN_ROLLUP_ROWS = 64 * UNIT_ROWS
"""Rows that a running stream collects before a rollup: each one packs the ends of all levels
again.
"""
MAX_ROWS = 16 * UNIT_ROWS
"""Rows that one transaction re-chunks; a single larger chunk is done whole."""
MAX_ROLLUP_CHUNKS = 2_000
MAX_STREAMS = 100
QUIET_S = 60.0
"""An ended launch may still send what it had left."""


@dataclass(frozen=True)
class CompactionTask:
    """A stream with something to compact, as it was read."""

    run_id: str
    stream_id: int
    samples: int
    compacted_seq: int
    rolled_seq: int
    is_over: bool

    @property
    def key(self) -> dict[str, Any]:
        """Return the parameters of statements about the stream."""
        return {"run": self.run_id, "stream": self.stream_id}


def compact_some(database: Database, now: float) -> bool:
    """Do one step for some streams; return False if there was nothing to do.

    Raises what the database raises.
    """
    with database.read() as session:
        tasks = find_tasks(session, now)
    random.shuffle(tasks)  # two workers rarely take the same one
    return sum(_compact_or_log(database, task) for task in tasks) > 0


def _compact_or_log(database: Database, task: CompactionTask) -> bool:
    """Keep one stream's error from stopping the others; a database error stops all."""
    try:
        return compact(database, task)
    except DBAPIError:
        raise
    except Exception:
        log.exception("stream %d of run %s could not be compacted", task.stream_id, task.run_id)
        return False


def compact_run(database: Database, run_id: str) -> None:
    """Compact and roll up all samples of an ended run, of a running one as far as possible."""
    while True:
        with database.read() as session:
            tasks = find_tasks(session, inf, run_id)
        if not sum(compact(database, task) for task in tasks):
            return


def find_tasks(session: Session, now: float, run_id: str | None = None) -> list[CompactionTask]:
    """Return some of the streams with something to do, of all runs or one."""
    is_over = and_(
        or_(RunRow.status != "running", ~StreamRow.is_current), RunRow.last_seen_at < now - QUIET_S
    )
    has_rows = StreamRow.samples - 1 - StreamRow.compacted_seq >= UNIT_ROWS
    has_units = StreamRow.compacted_seq - StreamRow.rolled_seq >= MIN_ROLLUP_ROWS
    query = (
        select(
            RunRow.id,
            StreamRow.id,
            StreamRow.samples,
            StreamRow.compacted_seq,
            StreamRow.rolled_seq,
            is_over,
        )
        .join(RunRow, RunRow.id == StreamRow.run_id)
        .where(~StreamRow.is_compacted, or_(is_over, has_rows, has_units))
    )
    if run_id is not None:
        query = query.where(RunRow.id == run_id)
    rows = session.execute(query.limit(MAX_STREAMS))
    return [CompactionTask(*row[:5], bool(row[5])) for row in rows]


def compact(database: Database, task: CompactionTask) -> bool:
    """Do the next step of a stream in one short transaction; return True if it was done."""
    new_rows = task.samples - 1 - task.compacted_seq
    rollup_rows = task.compacted_seq - task.rolled_seq
    if rollup_rows >= MIN_ROLLUP_ROWS or (task.is_over and rollup_rows and not new_rows):
        return _roll_up(database, task)
    if new_rows >= UNIT_ROWS or (task.is_over and new_rows):
        return _rechunk(database, task)
    return task.is_over and _write(database, task, lambda _: None, is_compacted=True)


def _rechunk(database: Database, task: CompactionTask) -> bool:
    with database.connect() as connection:
        sources = list(_read_sources(connection, task))
        if not sources and not _is_unchanged(connection, task):
            return False
    if not sources:
        last_seq = task.samples - 1
        log.error(
            "stream %d of run %s lacks samples from %d on",
            task.stream_id,
            task.run_id,
            task.compacted_seq + 1,
        )
        return _write(database, task, lambda _: None, compacted_seq=last_seq, rolled_seq=last_seq)
    # the last range waits for more samples, unless the stream has ended with it
    is_end = task.is_over and sources[-1].seq == task.samples - 1
    ranges = [item for item in rechunk(sources) if item.is_complete or is_end]
    if not ranges:
        return False
    last_seq = ranges[-1].seq
    new_rows = [_chunk_row(task, item) for item in ranges if not item.is_unchanged]
    unchanged = [item.seq for item in ranges if item.is_unchanged]
    # a chunk that reaches beyond the last range keeps its key, with the rows behind that range
    overlapping = next(
        (source for source in sources if source.seq > last_seq >= source.seq - source.rows + 1),
        None,
    )
    rest = None if overlapping is None else _chunk_row(task, overlapping.after(last_seq))

    def change(connection: Connection) -> None:
        filters = (ChunkRow.seq.not_in(unchanged),) if unchanged else ()
        replaced = {**task.key, "after": task.compacted_seq, "last": last_seq}
        # delete first: a new range may end at the position of an old one
        connection.execute(_DELETE_CHUNKS.where(*filters), replaced)
        if rest is not None:
            replaced = {**task.key, "after": rest["seq"] - 1, "last": rest["seq"]}
            connection.execute(_DELETE_CHUNKS, replaced)
        _ADD_CHUNK.run(connection, *new_rows, *([] if rest is None else [rest]))

    return _write(database, task, change, compacted_seq=last_seq)


def _roll_up(database: Database, task: CompactionTask) -> bool:
    with database.read() as session:
        if not _is_unchanged(session.connection(), task):
            return False
        query = select(ChunkRow.seq, ChunkRow.rows, ChunkRow.stats).where(
            *_seq_range(task, task.rolled_seq, task.compacted_seq)
        )
        chunks = session.execute(query.order_by(ChunkRow.seq).limit(MAX_ROLLUP_CHUNKS)).all()
        levels = RollupLevels(session, task.run_id, task.stream_id)
        levels.extend(from_stats((seq, rows, unpack_stats(stats)) for seq, rows, stats in chunks))
    last_seq = chunks[-1].seq if len(chunks) == MAX_ROLLUP_CHUNKS else task.compacted_seq

    def change(connection: Connection) -> None:
        with Session(connection) as session:
            levels.save(session)
            session.flush()
        rolled_up = _seq_range(task, task.rolled_seq, last_seq)
        has_samples = func.length(ChunkRow.packed) > 0
        connection.execute(delete(ChunkRow).where(*rolled_up, ~has_samples))
        connection.execute(update(ChunkRow).where(*rolled_up).values(stats=b""))

    return _write(database, task, change, rolled_seq=last_seq)


def _write(
    database: Database, task: CompactionTask, change: Callable[[Connection], None], **values: Any
) -> bool:
    """Update the stream and call `change` if the stream is unchanged; return True if written."""
    unchanged = [
        StreamRow.id == task.stream_id,
        StreamRow.run_id == task.run_id,
        StreamRow.compacted_seq == task.compacted_seq,
        StreamRow.rolled_seq == task.rolled_seq,
    ]
    if "is_compacted" in values:
        # a batch that arrived since must still be compacted
        unchanged.append(StreamRow.samples == task.samples)
    with database.write() as session:
        connection = session.connection()
        run = {"run": task.run_id}
        connection.execute(_LOCK_RUN, run)
        result = connection.execute(update(StreamRow).where(*unchanged).values(values))
        if result.rowcount != 1:  # also of a run that was deleted meanwhile
            return False
        if "compacted_seq" in values:
            # for a run whose samples were deleted before it was resumed
            connection.execute(_KEEP_SAMPLES, run)
        change(connection)
        return True


def _is_unchanged(connection: Connection, task: CompactionTask) -> bool:
    rows = _SELECT_POSITIONS.rows(connection, task.key)
    return rows == [[task.compacted_seq, task.rolled_seq]]


def _read_sources(connection: Connection, task: CompactionTask) -> Iterator[SampleRange]:
    """Yield the next chunks to re-chunk: about MAX_ROWS samples."""
    after = {**task.key, "after": task.compacted_seq}
    bounded = {**after, "last": task.compacted_seq + MAX_ROWS}
    # at least one chunk, even if it is larger than MAX_ROWS
    rows = _SELECT_SOURCES.rows(connection, bounded) or _SELECT_SOURCE.rows(connection, after)
    for seq, row_count, received_at, packed in rows:
        source = SampleRange(rows=row_count, seq=seq, received_at=received_at)
        if packed:
            try:
                source.parts.append((unseal_arrays(packed), 0, row_count))
            except WireError as error:
                log.error("chunk %d of stream %d is left as it is: %s", seq, task.stream_id, error)
        yield source


def _chunk_row(task: CompactionTask, samples: SampleRange) -> dict[str, Any]:
    columns = samples.columns()
    stats = chunk_stats(columns)
    return {
        "run_id": task.run_id,
        "stream_id": task.stream_id,
        "seq": samples.seq,
        "first_step": int(stats["step"][0] or 0),
        "last_step": int(stats["step"][1] or 0),
        "rows": samples.rows,
        "received_at": samples.received_at,
        "stats": pack_stats(stats),
        "packed": seal(columns),
    }


def _seq_range(
    task: CompactionTask, after_seq: int, last_seq: int
) -> Sequence[ColumnElement[bool]]:
    return (
        ChunkRow.run_id == task.run_id,
        ChunkRow.stream_id == task.stream_id,
        ChunkRow.seq > after_seq,
        ChunkRow.seq <= last_seq,
    )
