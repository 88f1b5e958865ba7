"""Samples: taking batches in, once each, and giving them out in order.

1. A batch is stored whole or not at all. Its key (run, rank, attempt, seq) is kept with a digest: the second delivery changes nothing.
2. Who is new (a rank, a stream) or back from the dead is entered by the rules of `ranks` and `streams`.
3. All else is the everyday, and costs a few statements: see `batch_rows`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from memagent.wire import messages
from memagent.wire.columns import Value
from memagent_server.store import batch_rows
from memagent_server.store.batch_rows import Found, Key
from memagent_server.store.chunks import ReadChunk, pack_stats, read_chunk
from memagent_server.store.errors import ConflictError
from memagent_server.store.history import read_chunks
from memagent_server.store.models import Dropped, Stream
from memagent_server.store.ranks import enter_rank, is_entered
from memagent_server.store.runs import lock_run
from memagent_server.store.series import series
from memagent_server.store.streams import StreamState, enter_stream, grow, write_states
from memagent_server.store.upsert import raise_to

__all__ = ["Accepted", "add_batch", "read_samples", "series", "take_batch"]

_pack = msgspec.msgpack.Encoder().encode


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
    """`take_batch` within a session's transaction."""
    session.flush()
    accepted = take_batch(session.connection(), run_id, batch, now, chunks=chunks, live=live)
    session.expire_all()
    return accepted


def take_batch(
    connection: Connection,
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
    key: Key = {"run_id": run_id, "rank": batch.rank, "attempt": batch.attempt, "seq": batch.seq}
    digest = digest_of(batch, chunks)
    batch_rows.lock_run_of(connection, key)
    found = batch_rows.find(connection, key)
    if found.digest is not None:
        return _repeat(found, key, digest)
    if (
        found.status is not None and batch.seq < found.next_seq
    ):  # its row was let go of: see `retention`
        return Accepted(sum(chunk.rows for chunk in chunks), found.next_seq, is_repeat=True)
    devices = {chunk.stream: None for chunk in chunks}  # in order, each once
    if not _knows(found, devices, live=live):
        found = _enter(connection, key, devices, now, live=live)
    samples = sum(chunk.rows for chunk in chunks)
    batch_rows.add_batch_row(connection, key, samples=samples, digest=digest, now=now)
    last_step = 0
    if chunks:
        last_step = _add_chunks(connection, run_id, found.streams, chunks, now)
        write_states(connection, [found.streams[device] for device in devices])
    if batch.events:
        batch_rows.add_event_rows(connection, [_event_row(key, event) for event in batch.events])
    for (
        reason,
        count,
    ) in batch.dropped_samples.items():  # cumulative: one that comes late must not turn it back
        raise_to(connection, Dropped, {**_rank_of(key), "reason": reason}, "count", count)
    next_seq = batch_rows.first_missing(connection, found, key)
    batch_rows.mark_seen(
        connection, found, key, step=last_step, next_seq=next_seq, now=now if live else None
    )
    return Accepted(samples, next_seq)


def read_samples(
    session: Session, stream_id: int, after_seq: int = -1
) -> Iterator[tuple[int, dict[str, list[Value]]]]:
    """(place of the last one, columns) of a stream's samples after the place `after_seq`, in order of arrival."""
    for chunk in read_chunks(session, session.get_one(Stream, stream_id), after_seq):
        yield chunk.seq, chunk.columns


def digest_of(batch: messages.Batch, chunks: Sequence[ReadChunk]) -> str:
    """What tells a batch from another under the same key. Of a chunk it has the header, which holds the samples' checksum."""
    content = [(chunk.stream, chunk.header) for chunk in chunks]
    return hashlib.blake2b(
        _pack((content, batch.events, batch.dropped_samples)), digest_size=16
    ).hexdigest()


def _repeat(found: Found, key: Key, digest: str) -> Accepted:
    if found.digest != digest:
        raise ConflictError(
            f"batch {key['seq']} of rank {key['rank']}, attempt {key['attempt']} is already there with other content; "
            "a new launch needs a new attempt, a new batch the next seq"
        )
    return Accepted(found.samples, found.next_seq, is_repeat=True)


def _knows(found: Found, devices: Iterable[str], *, live: bool) -> bool:
    """Whether rank and streams are there, and as they should be."""
    if found.status is None or not is_entered(found.status, found.is_replayed, live=live):
        return False
    return all(device in found.streams for device in devices)


def _enter(
    connection: Connection, key: Key, devices: Iterable[str], now: float, *, live: bool
) -> Found:
    """Make the rank and its streams, or what they lack, and find all again."""
    with Session(connection) as session:
        rank = enter_rank(
            session, lock_run(session, key["run_id"]), key["rank"], key["attempt"], now, live=live
        )
        for device in devices:
            enter_stream(session, rank, device)
        session.flush()
    return batch_rows.find(connection, key)


def _add_chunks(
    connection: Connection,
    run_id: str,
    streams: dict[str, StreamState],
    chunks: Sequence[ReadChunk],
    now: float,
) -> int:
    """Add the chunks to their streams; the last step of them all."""
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
        grow(stream, chunk, now)
    batch_rows.add_chunk_rows(connection, rows)
    return max(chunk.last_step for chunk in chunks)


def _event_row(key: Key, event: messages.Event) -> dict[str, Any]:
    return {
        **_rank_of(key),
        "step": event.step,
        "at": event.time_s,
        "kind": event.kind,
        "data": event.data,
    }


def _rank_of(key: Key) -> dict[str, Any]:
    return {"run_id": key["run_id"], "rank": key["rank"], "attempt": key["attempt"]}
