"""The rows that a batch reads and writes, as statements that SQLAlchemy compiles once: objects would cost ten times as much.

One question finds the run, the rank, whether the batch is there, and the rank's streams; then each table is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, func, select, update
from sqlalchemy.orm import aliased

from memagent_server.store.compiled_statements import CompiledSelect, CompiledWrite, prepared_insert
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Batch, Chunk, Event, Rank, Run, Stream
from memagent_server.store.streams import STREAM_STATE, StreamState

Key = dict[str, Any]
"""`run_id`, `rank`, `attempt` and `seq`."""


@dataclass(frozen=True)
class Found:
    """What is known of a batch's run and rank. `status` is None for a rank that is new, `digest` for a batch that is."""

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
_newest = aliased(Batch)
_NEWEST_SEQ = (
    select(func.max(_newest.seq))
    .where(
        _newest.run_id == Rank.run_id, _newest.rank == Rank.rank, _newest.attempt == Rank.attempt
    )
    .correlate(Rank)
    .scalar_subquery()
)
_FACTS = (
    Run.step,
    Run.peak_ratio,
    Rank.status,
    Rank.is_current,
    Rank.is_replayed,
    Rank.next_seq,
    Rank.last_seen_at,
    Batch.digest,
)
_FIND = CompiledSelect(
    select(
        *_FACTS,
        Batch.samples,
        _NEWEST_SEQ,
        Stream.device,
        *(getattr(Stream, name) for name in STREAM_STATE),
    )
    .select_from(Run)
    .outerjoin(Rank, and_(Rank.run_id == Run.id, Rank.rank == _RANK[0], Rank.attempt == _RANK[1]))
    .outerjoin(
        Batch,
        and_(
            Batch.run_id == Run.id,
            Batch.rank == _RANK[0],
            Batch.attempt == _RANK[1],
            Batch.seq == bindparam("seq"),
        ),
    )
    .outerjoin(
        Stream, and_(Stream.run_id == Run.id, Stream.rank == _RANK[0], Stream.attempt == _RANK[1])
    )
    .where(Run.id == bindparam("run_id"))
)
_LOCK = select(Run.id).where(Run.id == bindparam("run_id")).with_for_update(key_share=True)
_LATER = (
    select(Batch.seq)
    .where(
        Batch.run_id == bindparam("run_id"), Batch.rank == _RANK[0], Batch.attempt == _RANK[1],
        Batch.seq > bindparam("seq"),
    )
    .order_by(Batch.seq)
)  # fmt: skip
_ADD_BATCH = prepared_insert(
    Batch, "run_id", "rank", "attempt", "seq", "samples", "digest", "received_at"
)
_ADD_CHUNK = prepared_insert(
    Chunk,
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
_ADD_EVENT = prepared_insert(Event, "run_id", "rank", "attempt", "step", "at", "kind", "data")
_of_run: BindParameter[Any] = bindparam("of_run")
_MARK_RANK = CompiledWrite(
    update(Rank)
    .where(
        Rank.run_id == _of_run,
        Rank.rank == bindparam("of_rank"),
        Rank.attempt == bindparam("of_attempt"),
    )
    .values(next_seq=bindparam("next_seq"), last_seen_at=bindparam("last_seen_at"))
)
_MARK_RUN = CompiledWrite(
    update(Run)
    .where(Run.id == _of_run)
    .values(
        step=bindparam("step"),
        peak_ratio=bindparam("peak_ratio"),
        last_seen_at=bindparam("last_seen_at"),
    )
)
_MARK_STEP = CompiledWrite(
    update(Run)
    .where(Run.id == _of_run)
    .values(step=bindparam("step"), peak_ratio=bindparam("peak_ratio"))
)


def lock_run_of(connection: Connection, key: Key) -> None:
    """Changes of one run happen one after another. On SQLite the write transaction has locked all there is.

    On PostgreSQL this is a statement of its own: one that waits for a lock sees the other rows as they were before it waited.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(_LOCK, key)


def find(connection: Connection, key: Key) -> Found:
    """Raises UnknownRunError."""
    rows = _FIND.rows(connection, key)
    if not rows:
        raise UnknownRunError(key["run_id"])
    facts = len(_FACTS) + 2
    found = Found(*rows[0][:facts])
    found.streams.update(
        {row[facts]: StreamState(*row[facts + 1 :]) for row in rows if row[facts] is not None}
    )
    return found


def first_missing(connection: Connection, found: Found, key: Key) -> int:
    """`next_seq` after the batch: those that came early are counted when the gap closes."""
    missing = found.next_seq
    if key["seq"] != missing:
        return missing
    missing += 1
    if found.newest_seq is not None and found.newest_seq >= missing:
        for arrived in connection.execute(_LATER, key).scalars():
            if arrived != missing:
                break
            missing += 1
    return missing


def add_batch_row(
    connection: Connection, key: Key, *, samples: int, digest: str, now: float
) -> None:
    _ADD_BATCH.run(connection, {**key, "samples": samples, "digest": digest, "received_at": now})


def add_chunk_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    _ADD_CHUNK.run(connection, *rows)


def add_event_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    _ADD_EVENT.run(connection, *rows)


def mark_seen(
    connection: Connection, found: Found, key: Key, *, step: int, next_seq: int, now: float | None
) -> None:
    """Note in rank and run how far they are, and with `now` that they live."""
    of_run = {"of_run": key["run_id"]}
    of_rank = {**of_run, "of_rank": key["rank"], "of_attempt": key["attempt"]}
    seen_at = found.last_seen_at if now is None else now
    _MARK_RANK.run(connection, {**of_rank, "next_seq": next_seq, "last_seen_at": seen_at})
    if not found.is_current:
        return
    reached = {"step": max(found.step, step), "peak_ratio": _peak_ratio(found)}
    if now is not None:
        _MARK_RUN.run(connection, {**of_run, **reached, "last_seen_at": now})
    elif reached != {"step": found.step, "peak_ratio": found.peak_ratio}:
        _MARK_STEP.run(connection, {**of_run, **reached})


def _peak_ratio(found: Found) -> float:
    """The run's, with what this batch has added to its rank's streams."""
    return max([found.peak_ratio, *(stream.peak_ratio for stream in found.streams.values())])
