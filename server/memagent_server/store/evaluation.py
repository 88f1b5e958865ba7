"""What the worker has not read yet, asked for many streams at once: a turn costs a few queries, however many streams have news.

How far the alerts of streams have been decided, the states they were in then, and what their forecasters remember.

All of it is read and written for many streams at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.models import Chunk, EvaluationMark, ForecasterState, Run, Stream
from memagent_server.store.reading import integer_keys
from memagent_server.store.upsert import upsert_all

MOST_CHUNKS = 1_024
"""Read at once: some tens of megabytes where chunks are full."""


class StreamHead(NamedTuple):
    """A current stream of a running run without its readings. `run_born_at` tells a run from an earlier one of the same id."""

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


class Running(NamedTuple):
    """What evaluation asks of a running run."""

    project: str
    total_steps: int | None


class PendingChunks(NamedTuple):
    """A chunk as it is stored; the first `known` of its samples have been read, in the chunks that it was made of."""

    stream_id: int
    seq: int
    received_at: float
    packed: bytes
    known: int


_HEAD = (
    Stream.id, Stream.run_id, Run.created_at, Stream.rank, Stream.attempt, Stream.device, Stream.kind, Stream.chunks, Stream.last_step,
    Stream.peak_bytes, Stream.limit_bytes, Stream.limit_source, Stream.samples,
)  # fmt: skip


def running_runs(session: Session) -> dict[str, Running]:
    """Every running run by id."""
    query = select(Run.id, Run.project, Run.total_steps).where(Run.status == "running")
    return {run_id: Running(project, steps) for run_id, project, steps in session.execute(query)}


def heads_of_running(session: Session) -> list[StreamHead]:
    """The current streams of all running runs, without scalars, in the order in which they were made."""
    query = select(*_HEAD).join(Run, Run.id == Stream.run_id)
    query = query.where(Run.status == "running", Stream.is_current, Stream.kind != SCALARS_STREAM)
    return [StreamHead._make(row) for row in session.execute(query.order_by(Stream.id))]


def heads_of_run(session: Session, run_id: str) -> list[StreamHead]:
    """All streams of one run, whatever has become of it."""
    query = select(*_HEAD).join(Run, Run.id == Stream.run_id).where(Stream.run_id == run_id)
    return [StreamHead._make(row) for row in session.execute(query.order_by(Stream.id))]


def latest_of(session: Session, stream_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """The newest known value of every column, by stream."""
    wanted = integer_keys(session, stream_ids)
    query = (
        select(Stream.id, Stream.latest)
        .select_from(wanted)
        .join(Stream, Stream.id == wanted.c.first)
    )
    return {row.id: row.latest for row in session.execute(query)}


def read_pending(session: Session, after: Mapping[int, int]) -> Iterator[PendingChunks]:
    """The chunks of each stream after the place given for it, stream by stream and in order of arrival.

    Chunks whose samples were let go of are left out.
    """
    left = dict(sorted(after.items()))
    while left:
        wanted = integer_keys(session, left.items())
        query = (
            select(Chunk.stream_id, Chunk.seq, Chunk.received_at, Chunk.packed, Chunk.rows)
            .select_from(wanted)
            .join(Stream, Stream.id == wanted.c.first)
            .join(
                Chunk,
                (Chunk.stream_id == wanted.c.first)
                & (Chunk.run_id == Stream.run_id)
                & (Chunk.seq > wanted.c.second),
            )
            .order_by(Chunk.stream_id, Chunk.seq)
            .limit(MOST_CHUNKS)
        )
        found = session.execute(query).all()
        for stream_id, seq, received_at, packed, rows in found:
            if packed:
                yield PendingChunks(
                    stream_id, seq, received_at, packed, max(0, left[stream_id] - (seq - rows))
                )
            left[stream_id] = seq
        if len(found) < MOST_CHUNKS:
            return
        last = found[-1]
        left = {stream_id: seq for stream_id, seq in left.items() if stream_id >= last.stream_id}


class Mark(NamedTuple):
    """See `models.EvaluationMark`."""

    stream_id: int
    seq: int
    states: dict[str, Any]


def get_marks(session: Session, stream_ids: Collection[int]) -> dict[int, Mark]:
    """By stream; those that were never decided on are missing."""
    wanted = integer_keys(session, stream_ids)
    query = select(EvaluationMark.stream_id, EvaluationMark.seq, EvaluationMark.states).select_from(
        wanted
    )
    found = session.execute(query.join(EvaluationMark, EvaluationMark.stream_id == wanted.c.first))
    return {row.stream_id: Mark._make(row) for row in found}


def put_marks(session: Session, marks: Sequence[Mark]) -> None:
    """Keep how far streams have been decided. The runs' rows must be locked."""
    upsert_all(
        session, EvaluationMark, [mark._asdict() for mark in marks], update=("seq", "states")
    )


def get_recollections(
    session: Session, stream_ids: Collection[int]
) -> dict[int, tuple[int, bytes]]:
    """(last sample seen, state) of streams whose forecasters were remembered."""
    wanted = integer_keys(session, stream_ids)
    query = select(
        ForecasterState.stream_id, ForecasterState.seq, ForecasterState.state
    ).select_from(wanted)
    found = session.execute(
        query.join(ForecasterState, ForecasterState.stream_id == wanted.c.first)
    )
    return {row.stream_id: (row.seq, row.state) for row in found}


def put_recollections(session: Session, states: Sequence[tuple[int, int, bytes]]) -> None:
    """Keep (stream, last sample seen, state). The runs' rows must be locked."""
    rows = [
        {"stream_id": stream_id, "seq": seq, "state": state} for stream_id, seq, state in states
    ]
    upsert_all(session, ForecasterState, rows, update=("seq", "state"))


def forget_ended(session: Session) -> None:
    """Let go of recollections of launches that are over."""
    goes_on = (
        select(Stream.id)
        .join(Run, Run.id == Stream.run_id)
        .where(Run.status == "running", Stream.is_current)
    )
    session.execute(delete(ForecasterState).where(ForecasterState.stream_id.not_in(goes_on)))
