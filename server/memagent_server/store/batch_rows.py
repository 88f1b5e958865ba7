"""The rows that a batch reads and writes, in compiled statements: ORM objects would cost ten times
as much.

One query reads the run, the rank, whether the batch is stored, and the rank's streams. Then each
table is written once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, Float, and_, bindparam, func, select, update
from sqlalchemy.orm import aliased

from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import BatchRow, ChunkRow, EventRow, RankRow, RunRow, StreamRow
from memagent_server.store.statements import CompiledSelect, CompiledWrite, compile_insert
from memagent_server.store.streams import STREAM_STATE, StreamState


class BatchKey(NamedTuple):
    run_id: str
    rank: int
    attempt: int
    seq: int


@dataclass(frozen=True)
class BatchState:
    """State of a batch's run, rank and streams. `status` and `digest` are None for new ones."""

    step: int
    peak_ratio: float
    status: str | None
    is_current: bool
    is_replayed: bool
    next_seq: int
    last_seen_at: float
    digest: str | None
    samples: int
    newest_seq: int | None
    streams: dict[str, StreamState] = field(default_factory=dict)


_RANK: tuple[BindParameter[Any], BindParameter[Any]] = (bindparam("rank"), bindparam("attempt"))
_newest_batch = aliased(BatchRow)
_NEWEST_SEQ = (
    select(func.max(_newest_batch.seq))
    .where(
        # not the rank's: Citus takes no node from a column that may be missing
        _newest_batch.run_id == bindparam("run_id"),
        _newest_batch.rank == RankRow.rank,
        _newest_batch.attempt == RankRow.attempt,
    )
    .correlate(RankRow)
    .scalar_subquery()
)
_STATE_COLUMNS = (
    RunRow.step,
    RunRow.peak_ratio,
    RankRow.status,
    RankRow.is_current,
    RankRow.is_replayed,
    RankRow.next_seq,
    RankRow.last_seen_at,
    BatchRow.digest,
)
_SELECT_STATE = CompiledSelect(
    select(
        *_STATE_COLUMNS,
        BatchRow.samples,
        _NEWEST_SEQ,
        StreamRow.device,
        *(getattr(StreamRow, name) for name in STREAM_STATE),
    )
    .select_from(RunRow)
    .outerjoin(
        RankRow,
        and_(RankRow.run_id == RunRow.id, RankRow.rank == _RANK[0], RankRow.attempt == _RANK[1]),
    )
    .outerjoin(
        BatchRow,
        and_(
            BatchRow.run_id == RunRow.id,
            BatchRow.rank == _RANK[0],
            BatchRow.attempt == _RANK[1],
            BatchRow.seq == bindparam("seq"),
        ),
    )
    .outerjoin(
        StreamRow,
        and_(
            StreamRow.run_id == RunRow.id, StreamRow.rank == _RANK[0], StreamRow.attempt == _RANK[1]
        ),
    )
    .where(RunRow.id == bindparam("run_id"))
)
_LOCK_RUN = (
    # key_share: rows that refer to the run can still be inserted meanwhile
    select(RunRow.id).where(RunRow.id == bindparam("run_id")).with_for_update(key_share=True)
)
_SELECT_LATER = (
    select(BatchRow.seq)
    .where(
        BatchRow.run_id == bindparam("run_id"),
        BatchRow.rank == _RANK[0],
        BatchRow.attempt == _RANK[1],
        BatchRow.seq > bindparam("seq"),
    )
    .order_by(BatchRow.seq)
)
_ADD_BATCH = compile_insert(
    BatchRow, "run_id", "rank", "attempt", "seq", "samples", "digest", "received_at"
)
_ADD_CHUNK = compile_insert(
    ChunkRow,
    "run_id",
    "stream_id",
    "seq",
    "first_step",
    "last_step",
    "rows",
    "received_at",
    "stats",
    "packed",
)
_ADD_EVENT = compile_insert(
    EventRow, "run_id", "rank", "attempt", "step", "at", "kind", "data", "is_pending"
)
# not run_id: an update reserves its columns' names for the values that it sets
_of_run: BindParameter[Any] = bindparam("of_run")
_UPDATE_RANK = CompiledWrite(
    update(RankRow)
    .where(
        RankRow.run_id == _of_run,
        RankRow.rank == bindparam("of_rank"),
        RankRow.attempt == bindparam("of_attempt"),
    )
    .values(next_seq=bindparam("next_seq"), last_seen_at=bindparam("last_seen_at"))
)
_UPDATE_RUN = CompiledWrite(
    update(RunRow)
    .where(RunRow.id == _of_run)
    .values(
        step=bindparam("step"),
        peak_ratio=bindparam("peak_ratio"),
        last_seen_at=bindparam("last_seen_at"),
        # an index has it: each batch would write all indexes on PostgreSQL
        changed_at=RunRow.changed_at,
    )
)
_UPDATE_ENDED_RUN = CompiledWrite(
    update(RunRow)
    .where(RunRow.id == _of_run)
    .values(
        step=bindparam("step"),
        peak_ratio=bindparam("peak_ratio"),
        last_seen_at=func.coalesce(bindparam("last_seen_at", type_=Float), RunRow.last_seen_at),
        changed_at=bindparam("changed_at"),
    )
)


def lock_run_of(connection: Connection, key: BatchKey) -> None:
    """Lock the run's row, so that changes of one run are serial.

    On SQLite the write transaction has locked everything. On PostgreSQL this must be a statement of
    its own: one that waits for a lock sees other tables as they were before it waited.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(_LOCK_RUN, key._asdict())


def read_state(connection: Connection, key: BatchKey) -> BatchState:
    """Return the state that a batch finds. Raises UnknownRunError."""
    rows = _SELECT_STATE.rows(connection, key._asdict())
    if not rows:
        raise UnknownRunError(key.run_id)
    device = len(_STATE_COLUMNS) + 2
    streams = {
        row[device]: StreamState(*row[device + 1 :]) for row in rows if row[device] is not None
    }
    state = BatchState(*rows[0][:device])
    state.streams.update(streams)
    return state


def next_missing_seq(connection: Connection, state: BatchState, key: BatchKey) -> int:
    """Return `next_seq` after this batch. Batches that came early count when the gap closes."""
    if key.seq != state.next_seq:
        return state.next_seq
    missing = state.next_seq + 1
    if state.newest_seq is not None and state.newest_seq >= missing:
        for stored in connection.execute(_SELECT_LATER, key._asdict()).scalars():
            if stored != missing:
                break
            missing += 1
    return missing


def add_batch_row(
    connection: Connection, key: BatchKey, *, samples: int, digest: str, now: float
) -> None:
    values = {**key._asdict(), "samples": samples, "digest": digest, "received_at": now}
    _ADD_BATCH.run(connection, values)


def add_chunk_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    _ADD_CHUNK.run(connection, *rows)


def add_event_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    _ADD_EVENT.run(connection, *rows)


def mark_progress(
    connection: Connection,
    state: BatchState,
    key: BatchKey,
    *,
    step: int,
    next_seq: int,
    seen_at: float | None,
) -> None:
    """Write how far rank and run are; `seen_at` is None for a replayed batch."""
    run = {"of_run": key.run_id}
    _UPDATE_RANK.run(
        connection,
        {
            **run,
            "of_rank": key.rank,
            "of_attempt": key.attempt,
            "next_seq": next_seq,
            "last_seen_at": state.last_seen_at if seen_at is None else seen_at,
        },
    )
    if not state.is_current:
        return
    # the streams have this batch's peaks already
    peak_ratios = (stream.peak_ratio for stream in state.streams.values())
    progress = {
        **run,
        "step": max(state.step, step),
        "peak_ratio": max([state.peak_ratio, *peak_ratios]),
        "last_seen_at": seen_at,
    }
    if state.status == "running":
        _UPDATE_RUN.run(connection, progress)
    else:
        # of a rank that has ended: if its run has, too, this is a change like any other
        _UPDATE_ENDED_RUN.run(connection, {**progress, "changed_at": time.time()})
