"""Leases of work: every run and every channel belongs to a shard, and a shard to at most one
worker.

1. A worker has a row whose `beat` it raises again and again. The others see it alive while the beat
   changes, by their own monotonic clocks: clocks of different machines are never compared.
2. A dead worker is removed: its row is deleted if its beat is still the one that was seen, and its
   claims go with the row.
3. Free shards are claimed up to a fair share; a worker releases what is above it.
4. A worker that writes results of a shard locks the shard's row first, and learns there if it was
   removed (`hold`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import CursorResult, Delete, Update, delete, func, select, text, update
from sqlalchemy.orm import Session

from memagent_server.store.models import SHARDS, ShardRow, WorkerRow

_LOCK_TIMEOUT = "2s"
"""Maximum wait for rows that another worker has locked: a heartbeat must not be late."""
_IDLE_TIMEOUT = "30s"
"""A worker that hangs during a transaction loses it after this long."""

_ALIVE_S = 60.0


@dataclass(frozen=True)
class Peer:
    """A worker's row. `place` names the system of its process id, if that is known."""

    id: str
    beat: int
    place: str | None
    pid: int


def shard_of(key: str) -> int:
    """Return the shard of a run or a channel."""
    # not hash(), which differs from process to process
    return crc32(key.encode()) % SHARDS


def add_worker(
    session: Session, worker_id: str, *, place: str | None, pid: int, host: str, now: float
) -> None:
    session.add(
        WorkerRow(
            id=worker_id, beat=0, place=place, pid=pid, host=host, started_at=now, seen_at=now
        )
    )


def heartbeat(session: Session, worker_id: str, now: float) -> bool:
    """Raise a worker's beat; return False if it was removed."""
    own = (
        update(WorkerRow)
        .where(WorkerRow.id == worker_id)
        .values(beat=WorkerRow.beat + 1, seen_at=now)
    )
    return _changed(session, own)


def remove_worker(session: Session, worker_id: str) -> None:
    """Remove a worker and release its shards."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


def peers(session: Session) -> list[Peer]:
    """Return all workers, including the caller."""
    query = select(WorkerRow.id, WorkerRow.beat, WorkerRow.place, WorkerRow.pid).order_by(
        WorkerRow.id
    )
    return [Peer(row.id, row.beat, row.place, row.pid) for row in session.execute(query)]


def count_alive(session: Session, now: float) -> int:
    """Return the number of workers seen within a minute by their own clocks, for display only."""
    spoke = func.abs(WorkerRow.seen_at - now) < _ALIVE_S
    return session.scalar(select(func.count()).select_from(WorkerRow).where(spoke)) or 0


def remove_dead_worker(session: Session, dead: Peer) -> bool:
    """Remove a dead worker and its claims, unless its beat has changed."""
    _limit_lock_wait(session)
    return _changed(
        session, delete(WorkerRow).where(WorkerRow.id == dead.id, WorkerRow.beat == dead.beat)
    )


def shards_of(session: Session, worker_id: str) -> set[int]:
    return set(session.scalars(select(ShardRow.shard).where(ShardRow.worker_id == worker_id)))


def claim(session: Session, worker_id: str, most: int) -> set[int]:
    """Claim up to `most` free shards; return them."""
    free = (
        select(ShardRow.shard)
        .where(ShardRow.worker_id.is_(None))
        .order_by(ShardRow.shard)
        .limit(most)
    )
    # skips what another worker is claiming just now, in place of waiting for it
    shards = set(session.scalars(free.with_for_update(skip_locked=True)))
    if shards:
        session.execute(
            update(ShardRow).where(ShardRow.shard.in_(shards)).values(worker_id=worker_id)
        )
    return shards


def release(session: Session, worker_id: str, shards: Collection[int]) -> None:
    _limit_lock_wait(session)
    own = (ShardRow.worker_id == worker_id, ShardRow.shard.in_(shards))
    session.execute(update(ShardRow).where(*own).values(worker_id=None))


def hold(session: Session, worker_id: str, shards: Collection[int]) -> bool:
    """Return True if all these shards are the worker's; they stay so until the transaction ends."""
    if session.get_bind().dialect.name != "sqlite":  # on SQLite a write locks the whole database
        session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_TIMEOUT}'"))
    own = (
        select(ShardRow.shard)
        .where(ShardRow.worker_id == worker_id, ShardRow.shard.in_(shards))
        .order_by(ShardRow.shard)
    )
    # a shared lock: transactions of one worker don't wait for each other
    return set(session.scalars(own.with_for_update(read=True))) == set(shards)


def _limit_lock_wait(session: Session) -> None:
    if session.get_bind().dialect.name != "sqlite":
        session.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))


def _changed(session: Session, statement: Update | Delete) -> bool:
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
