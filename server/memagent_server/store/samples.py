"""Samples: batches are stored exactly once and read in order.

1. A batch is stored whole or not at all. Its key (run, rank, attempt, seq) is stored with a digest:
   a second delivery changes nothing.
2. A new rank or stream, or a lost rank that reports again, is entered by `ranks` and `streams`.
3. The common case takes a few compiled statements: see `batch_rows`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from memagent.wire import messages
from memagent.wire.columns import Value
from memagent_server.store import batch_rows
from memagent_server.store.batch_rows import BatchKey
from memagent_server.store.chunks import ReadChunk, pack_stats, read_chunk
from memagent_server.store.console import add_lines
from memagent_server.store.errors import ConflictError
from memagent_server.store.events import settle_commands
from memagent_server.store.history import read_chunks
from memagent_server.store.models import DroppedRow, StreamRow
from memagent_server.store.ranks import end_replayed, enter_rank, is_entered
from memagent_server.store.runs import lock_run
from memagent_server.store.statements import raise_to
from memagent_server.store.streams import StreamState, add_chunk, enter_stream, write_states

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Accepted:
    """Stored `samples`. `next_seq` is the first missing batch; `is_repeat` if stored before."""

    samples: int
    next_seq: int
    is_repeat: bool = False


def add_batch(
    session: Session,
    run_id: str,
    batch: messages.Batch,
    now: float,
    *,
    chunks: Sequence[ReadChunk] | None = None,
    live: bool = True,
) -> Accepted:
    """Run `store_batch` in a session's transaction."""
    session.flush()
    accepted = store_batch(session.connection(), run_id, batch, now, chunks=chunks, live=live)
    # the compiled statements went past the session's objects
    session.expire_all()
    return accepted


def store_batch(
    connection: Connection,
    run_id: str,
    batch: messages.Batch,
    now: float,
    *,
    chunks: Sequence[ReadChunk] | None = None,
    live: bool = True,
) -> Accepted:
    """Store a batch. `chunks` are the batch's own if they are decoded already. `live`: see
    `enter_rank`.

    Raises UnknownRunError, WireError for unreadable chunks, ConflictError for other content of a
    known key.
    """
    if chunks is None:
        chunks = [read_chunk(chunk) for chunk in batch.chunks]
    key = BatchKey(run_id, batch.rank, batch.attempt, batch.seq)
    samples = sum(chunk.rows for chunk in chunks)
    digest = digest_of(batch, chunks)
    batch_rows.lock_run_of(connection, key)
    state = batch_rows.read_state(connection, key)
    if state.digest is not None:
        if state.digest != digest:
            raise ConflictError(
                f"Batch {key.seq} of rank {key.rank}, attempt {key.attempt} exists with other"
                " content: use a new attempt for a new launch, the next seq for a new batch."
            )
        return Accepted(state.samples, state.next_seq, is_repeat=True)
    if state.status is not None and batch.seq < state.next_seq:
        # retention has deleted the batch's row: all batches before next_seq are stored
        return Accepted(samples, state.next_seq, is_repeat=True)
    devices = list(dict.fromkeys(chunk.stream for chunk in chunks))
    is_known = state.status is not None and is_entered(state.status, state.is_replayed, live=live)
    if not is_known or not all(device in state.streams for device in devices):
        with Session(connection) as session:
            run = lock_run(session, run_id)
            rank = enter_rank(session, run, batch.rank, batch.attempt, now, live=live)
            for device in devices:
                enter_stream(session, rank, device)
            session.flush()
        state = batch_rows.read_state(connection, key)
    batch_rows.add_batch_row(connection, key, samples=samples, digest=digest, now=now)
    last_step = 0
    if chunks:
        last_step = max(chunk.last_step for chunk in chunks)
        _add_chunks(connection, run_id, state.streams, chunks, now)
        write_states(connection, run_id, [state.streams[device] for device in devices])
        if not live:
            # a killed process sends no end: its newest sample is the last thing known of it
            times = [state.streams[device].last_sample_at or 0.0 for device in devices]
            with Session(connection) as session:
                end_replayed(session, run_id, batch.rank, batch.attempt, max(times))
                session.flush()
    if batch.events:
        rows = [_event_row(key, event, live=live) for event in batch.events]
        batch_rows.add_event_rows(connection, rows)
        settle_commands(connection, run_id, batch.events)
    if batch.console:
        add_lines(connection, key, batch.console)
    # cumulative counts: one that comes late must not lower a newer one
    for reason, count in batch.dropped_samples.items():
        dropped_key = {
            "run_id": run_id,
            "rank": batch.rank,
            "attempt": batch.attempt,
            "reason": reason,
        }
        raise_to(connection, DroppedRow, dropped_key, "count", count)
    next_seq = batch_rows.next_missing_seq(connection, state, key)
    seen_at = now if live else None
    batch_rows.mark_progress(
        connection, state, key, step=last_step, next_seq=next_seq, seen_at=seen_at
    )
    return Accepted(samples, next_seq)


def read_samples(
    session: Session, stream_id: int, after_seq: int = -1
) -> Iterator[tuple[int, dict[str, list[Value]]]]:
    """Yield (position of the last sample, columns) of a stream's chunks after a position."""
    stream = session.scalars(select(StreamRow).where(StreamRow.id == stream_id)).one()
    for chunk in read_chunks(session, stream, after_seq):
        yield chunk.seq, chunk.columns


def digest_of(batch: messages.Batch, chunks: Sequence[ReadChunk]) -> str:
    """Return a digest of a batch's content. A chunk counts by its header, which has a checksum."""
    content = [(chunk.stream, chunk.header) for chunk in chunks]
    # agents before 0.2 send no console: a batch of theirs has the digest that it had
    console = (batch.console,) if batch.console else ()
    encoded = _encode((content, batch.events, batch.dropped_samples, *console))
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def _add_chunks(
    connection: Connection,
    run_id: str,
    streams: dict[str, StreamState],
    chunks: Sequence[ReadChunk],
    now: float,
) -> None:
    rows: list[dict[str, Any]] = []
    for chunk in chunks:
        stream = streams[chunk.stream]
        rows.append(
            {
                "run_id": run_id,
                "stream_id": stream.id,
                "seq": stream.samples + chunk.rows - 1,
                "first_step": chunk.first_step,
                "last_step": chunk.last_step,
                "rows": chunk.rows,
                "received_at": now,
                "stats": pack_stats(chunk.stats),
                "packed": chunk.packed,
            }
        )
        add_chunk(stream, chunk, now)
    batch_rows.add_chunk_rows(connection, rows)


def _event_row(key: BatchKey, event: messages.Event, *, live: bool) -> dict[str, Any]:
    return {
        "run_id": key.run_id,
        "rank": key.rank,
        "attempt": key.attempt,
        "step": event.step,
        "at": event.time_s,
        # only people request things: see `store/events.py`
        "kind": messages.COMMAND_REPLY if event.kind == messages.COMMAND else event.kind,
        "data": event.data,
        # what is uploaded later is history, and alerts nobody
        "is_pending": live and event.kind == messages.SCRIPT_ALERT,
    }
