"""What the worker's evaluation reads and writes, for many streams at once.

These are streams with new samples, those samples, how far alerts are decided, and the forecasters'
state. A turn costs a few queries, however many streams have news.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.models import (
    ChunkRow,
    EvaluationMarkRow,
    ForecasterStateRow,
    RunRow,
    StreamRow,
)
from memagent_server.store.reading import integer_keys
from memagent_server.store.statements import CompiledSelect, upsert_all

MAX_CHUNKS = 1_024
"""Chunks per query: some tens of megabytes if they are full."""


class StreamHead(NamedTuple):
    """A stream without readings. `run_born_at` tells a run from an earlier one of the same id."""

    id: int
    run_id: str
    run_born_at: float
    rank: int
    attempt: int
    device: str
    kind: str
    chunks: int
    last_step: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    limit_source: str | None
    samples: int


class RunningRun(NamedTuple):
    """The columns of a running run that evaluation needs."""

    project: str
    total_steps: int | None


class PendingChunk(NamedTuple):
    """A stored chunk with new samples. Its first `evaluated_rows` were read before compaction."""

    stream_id: int
    seq: int
    received_at: float
    packed: bytes
    evaluated_rows: int


class StreamMark(NamedTuple):
    """How far a stream's alerts are decided: see `models.EvaluationMarkRow`."""

    stream_id: int
    seq: int
    states: dict[str, Any]


_HEAD_COLUMNS: tuple[Any, ...] = (
    StreamRow.id,
    StreamRow.run_id,
    RunRow.created_at,
    StreamRow.rank,
    StreamRow.attempt,
    StreamRow.device,
    StreamRow.kind,
    StreamRow.chunks,
    StreamRow.last_step,
    StreamRow.peak_bytes,
    StreamRow.limit_bytes,
    StreamRow.limit_source,
    StreamRow.samples,
)


# compiled: each turn of a worker reads all of them
_HEADS_OF_RUNNING = CompiledSelect(
    select(*_HEAD_COLUMNS)
    .join(RunRow, RunRow.id == StreamRow.run_id)
    .where(RunRow.status == "running", StreamRow.is_current, StreamRow.kind != SCALARS_STREAM)
    .order_by(StreamRow.id)
)


def running_runs(session: Session) -> dict[str, RunningRun]:
    """Return every running run by id."""
    query = select(RunRow.id, RunRow.project, RunRow.total_steps).where(RunRow.status == "running")
    return {run_id: RunningRun(project, steps) for run_id, project, steps in session.execute(query)}


def heads_of_running(session: Session) -> list[StreamHead]:
    """Return the current streams of all running runs by id, without scalars."""
    return [StreamHead._make(row) for row in _HEADS_OF_RUNNING.rows(session.connection(), {})]


def current_heads(session: Session) -> list[StreamHead]:
    """Return the current streams of all running runs by run, scalars too."""
    query = select(*_HEAD_COLUMNS).join(RunRow, RunRow.id == StreamRow.run_id)
    query = query.where(RunRow.status == "running", StreamRow.is_current)
    query = query.order_by(StreamRow.run_id, StreamRow.id)
    return [StreamHead._make(row) for row in session.execute(query)]


def heads_of_run(session: Session, run_id: str) -> list[StreamHead]:
    """Return all streams of a run by id, running or not."""
    query = select(*_HEAD_COLUMNS).join(RunRow, RunRow.id == StreamRow.run_id)
    query = query.where(StreamRow.run_id == run_id).order_by(StreamRow.id)
    return [StreamHead._make(row) for row in session.execute(query)]


def latest_of(session: Session, stream_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the newest known value of every column, by stream."""
    keys = integer_keys(session, stream_ids)
    query = select(StreamRow.id, StreamRow.latest).select_from(keys)
    rows = session.execute(query.join(StreamRow, StreamRow.id == keys.c.first))
    return {row.id: row.latest for row in rows}


def read_pending(session: Session, after: Mapping[int, int]) -> Iterator[PendingChunk]:
    """Yield the chunks of each stream after the position given for it, by stream and position.

    Chunks whose samples were deleted are left out.
    """
    positions = dict(sorted(after.items()))
    while positions:
        keys = integer_keys(session, positions.items())
        query = (
            select(
                ChunkRow.stream_id,
                ChunkRow.seq,
                ChunkRow.received_at,
                ChunkRow.packed,
                ChunkRow.rows,
            )
            .select_from(keys)
            .join(StreamRow, StreamRow.id == keys.c.first)
            .join(
                ChunkRow,
                (ChunkRow.stream_id == keys.c.first)
                & (ChunkRow.run_id == StreamRow.run_id)
                & (ChunkRow.seq > keys.c.second),
            )
            .order_by(ChunkRow.stream_id, ChunkRow.seq)
            .limit(MAX_CHUNKS)
        )
        chunks = session.execute(query).all()
        for stream_id, seq, received_at, packed, rows in chunks:
            if packed:
                evaluated_rows = max(0, positions[stream_id] - (seq - rows))
                yield PendingChunk(stream_id, seq, received_at, packed, evaluated_rows)
            # also for a deleted chunk, which would be read forever
            positions[stream_id] = seq
        if len(chunks) < MAX_CHUNKS:
            return
        # streams before the last one are read completely
        last_id = chunks[-1].stream_id
        positions = {key: seq for key, seq in positions.items() if key >= last_id}


def get_marks(session: Session, stream_ids: Collection[int]) -> dict[int, StreamMark]:
    """Return the marks by stream; a stream that was never evaluated is missing."""
    keys = integer_keys(session, stream_ids)
    query = select(EvaluationMarkRow.stream_id, EvaluationMarkRow.seq, EvaluationMarkRow.states)
    rows = session.execute(
        query.select_from(keys).join(EvaluationMarkRow, EvaluationMarkRow.stream_id == keys.c.first)
    )
    return {row.stream_id: StreamMark._make(row) for row in rows}


def put_marks(session: Session, marks: Sequence[StreamMark]) -> None:
    """Store marks. The runs' rows must be locked."""
    rows = [mark._asdict() for mark in marks]
    upsert_all(session, EvaluationMarkRow, rows, update=("seq", "states"))


def get_forecaster_states(
    session: Session, stream_ids: Collection[int]
) -> dict[int, tuple[int, bytes]]:
    """Return (position of the last sample, state) by stream."""
    keys = integer_keys(session, stream_ids)
    query = select(ForecasterStateRow.stream_id, ForecasterStateRow.seq, ForecasterStateRow.state)
    rows = session.execute(
        query.select_from(keys).join(
            ForecasterStateRow, ForecasterStateRow.stream_id == keys.c.first
        )
    )
    return {row.stream_id: (row.seq, row.state) for row in rows}


def put_forecaster_states(session: Session, states: Sequence[tuple[int, int, bytes]]) -> None:
    """Store (stream, position of the last sample, state). The runs' rows must be locked."""
    rows = [
        {"stream_id": stream_id, "seq": seq, "state": state} for stream_id, seq, state in states
    ]
    upsert_all(session, ForecasterStateRow, rows, update=("seq", "state"))


def delete_ended_states(session: Session) -> None:
    """Delete the forecaster states of ended launches."""
    running = (
        select(StreamRow.id)
        .join(RunRow, RunRow.id == StreamRow.run_id)
        .where(RunRow.status == "running", StreamRow.is_current)
    )
    session.execute(delete(ForecasterStateRow).where(ForecasterStateRow.stream_id.not_in(running)))
