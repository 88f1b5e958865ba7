"""Samples: taking batches in, once each, and giving them out in order.

A batch is one transaction. Its key (run, rank, attempt, seq) is kept with a digest: the second delivery of a batch changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire import messages
from memagent.wire.codec import encode
from memagent.wire.columns import Value
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.chunks import ReadChunk, pack_stats, read_chunk
from memagent_server.store.errors import ConflictError
from memagent_server.store.history import read_chunks
from memagent_server.store.models import Batch, Chunk, Dropped, Event, Rank, Run, Stream
from memagent_server.store.ranks import enter_rank
from memagent_server.store.runs import lock_run
from memagent_server.store.series import series
from memagent_server.store.streams import enter_stream, raise_peaks
from memagent_server.store.upsert import upsert

__all__ = ["Accepted", "add_batch", "read_samples", "series"]


@dataclass(frozen=True)
class Accepted:
    """`samples` are stored for good; `next_seq` is the first batch still missing; `is_repeat` if it had been there before."""

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
    """Store a batch. `chunks` are the batch's own where they have been decoded (and checked) before. `live`: see `enter_rank`.

    Raises UnknownRunError, WireError for chunks that cannot be read, ConflictError for a key that exists with other content.
    """
    if chunks is None:
        chunks = [read_chunk(chunk) for chunk in batch.chunks]
    digest = hashlib.blake2b(encode(batch), digest_size=16).hexdigest()
    run = lock_run(session, run_id)
    known = session.get(Batch, (run_id, batch.rank, batch.attempt, batch.seq))
    if known is not None:
        return _repeat(session, known, digest)
    rank = enter_rank(session, run, batch.rank, batch.attempt, now, live=live)
    samples = sum(chunk.rows for chunk in chunks)
    session.add(
        Batch(
            run_id=run_id,
            rank=batch.rank,
            attempt=batch.attempt,
            seq=batch.seq,
            samples=samples,
            digest=digest,
            received_at=now,
        )
    )
    for chunk in chunks:
        _add_chunk(session, run, rank, chunk, now)
    _add_events(session, rank, batch.events)
    _count_dropped(session, rank, batch.dropped_samples)
    session.flush()
    _advance(session, rank, batch.seq)
    return Accepted(samples, rank.next_seq)


def read_samples(session: Session, stream_id: int, after_seq: int = -1) -> Iterator[tuple[int, dict[str, list[Value]]]]:
    """(seq, columns) of a stream's chunks after `after_seq`, in order of arrival."""
    for chunk in read_chunks(session, stream_id, after_seq):
        yield chunk.seq, chunk.columns


def _repeat(session: Session, known: Batch, digest: str) -> Accepted:
    if known.digest != digest:
        raise ConflictError(
            f"batch {known.seq} of rank {known.rank}, attempt {known.attempt} is already there with other content; "
            "a new launch needs a new attempt, a new batch the next seq"
        )
    rank = session.get_one(Rank, (known.run_id, known.rank, known.attempt))
    return Accepted(known.samples, rank.next_seq, is_repeat=True)


def _add_chunk(session: Session, run: Run, rank: Rank, chunk: ReadChunk, now: float) -> None:
    stream = enter_stream(session, rank, chunk.stream)
    stats = chunk.stats
    first, last = int(stats["step"][0] or 0), int(stats["step"][1] or 0)
    session.add(
        Chunk(
            stream_id=stream.id,
            seq=stream.chunks,
            first_step=first,
            last_step=last,
            rows=chunk.rows,
            received_at=now,
            stats=pack_stats(stats),
            packed=chunk.packed,
        )
    )
    stream.chunks += 1
    stream.samples += chunk.rows
    stream.first_step = first if stream.first_step is None else min(first, stream.first_step)
    if stream.last_step is None or last >= stream.last_step:
        stream.last_step = last
        _show_newest(stream, chunk.newest, now)
    if stream.kind != SCALARS_STREAM:
        raise_peaks(stream, {name: most for name, (_, most, _) in stats.items()})
    if rank.is_current:
        run.step = max(run.step, last)


def _show_newest(stream: Stream, newest: dict[str, Value], now: float) -> None:
    known = {name: value for name, value in newest.items() if value is not None or name not in stream.latest}
    stream.latest = {**stream.latest, **known}
    stream.last_sample_at = float(newest.get("time_s") or now)
    limit = newest.get("limit_bytes")
    if limit is not None and stream.kind != SCALARS_STREAM:
        stream.limit_bytes = int(limit)


def _add_events(session: Session, rank: Rank, events: Sequence[messages.Event]) -> None:
    for event in events:
        facts: dict[str, Any] = {"step": event.step, "at": event.time_s, "kind": event.kind, "data": event.data}
        session.add(Event(run_id=rank.run_id, rank=rank.rank, attempt=rank.attempt, **facts))


def _count_dropped(session: Session, rank: Rank, dropped: dict[str, int]) -> None:
    """The agent's counts only grow, so an older batch that arrives late must not turn them back."""
    for reason, count in dropped.items():
        key = {"run_id": rank.run_id, "rank": rank.rank, "attempt": rank.attempt, "reason": reason}
        before = session.get(Dropped, tuple(key.values()))
        if before is None or count > before.count:
            upsert(session, Dropped, {**key, "count": count}, update=("count",))


def _advance(session: Session, rank: Rank, seq: int) -> None:
    """Move `next_seq` over what has arrived; batches that came early are counted when the gap closes."""
    if seq != rank.next_seq:
        return
    rank.next_seq += 1
    later = select(Batch.seq).where(
        Batch.run_id == rank.run_id, Batch.rank == rank.rank, Batch.attempt == rank.attempt, Batch.seq > seq
    )
    for arrived in session.scalars(later.order_by(Batch.seq)):
        if arrived != rank.next_seq:
            break
        rank.next_seq += 1
