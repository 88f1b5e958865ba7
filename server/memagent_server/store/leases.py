"""Which worker works on what: every run and every channel belongs to a shard, and a shard to at
most one worker.

1. A worker has a row whose `beat` it raises again and again. It is alive to those who see the beat
   change, by their own steady clocks: no clock of one machine is compared with another's, and one
   that is set forward or back changes nothing.
2. Who is dead is buried: its row is deleted, if its beat is still the one that was seen, and with
   the row go its claims.
3. Free shards are claimed up to a fair part; what is above it is released.
4. Who writes what it decided on a shard locks the shard's row first, and finds out there that it
   has been buried (`hold`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from zlib import crc32

from sqlalchemy import CursorResult, Delete, Update, delete, func, select, text, update
from sqlalchemy.orm import Session

from memagent_server.store.models import SHARDS, Shard, WorkerRow

_PATIENCE = "2s"
"""How long a beat waits for rows that another worker has locked: it must not be late for that."""
_HUNG = "30s"
"""A worker that is stopped in the middle of a transaction loses it after this long."""

_LATELY_S = 60.0


@dataclass(frozen=True)
class Peer:
    """A worker as its row has it. `place` names the system whose process numbers `pid` is one of,
    where that is known.
    """

    id: str
    beat: int
    place: str | None
    pid: int


def shard_of(key: str) -> int:
    """The shard of a run or a channel."""
    return crc32(key.encode()) % SHARDS


def join(
    session: Session, worker_id: str, *, place: str | None, pid: int, host: str, now: float
) -> None:
    session.add(
        WorkerRow(
            id=worker_id, beat=0, place=place, pid=pid, host=host, started_at=now, seen_at=now
        )
    )


def beat(session: Session, worker_id: str, now: float) -> bool:
    """Say that a worker is alive; False where it was buried meanwhile."""
    mine = (
        update(WorkerRow)
        .where(WorkerRow.id == worker_id)
        .values(beat=WorkerRow.beat + 1, seen_at=now)
    )
    return _changed(session, mine)


def leave(session: Session, worker_id: str) -> None:
    """A worker goes, and lets go of what it held."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker_id))


def peers(session: Session) -> list[Peer]:
    """Everybody, oneself among them."""
    query = select(WorkerRow.id, WorkerRow.beat, WorkerRow.place, WorkerRow.pid).order_by(
        WorkerRow.id
    )
    return [Peer(row.id, row.beat, row.place, row.pid) for row in session.execute(query)]


def count_alive(session: Session, now: float) -> int:
    """How many workers spoke lately, by their own clocks: for people to see, nothing is decided by
    it.
    """
    spoke = func.abs(WorkerRow.seen_at - now) < _LATELY_S
    return session.scalar(select(func.count()).select_from(WorkerRow).where(spoke)) or 0


def bury(session: Session, dead: Peer) -> bool:
    """Take a worker's row and claims away, if it has not spoken since."""
    _be_patient(session)
    return _changed(
        session, delete(WorkerRow).where(WorkerRow.id == dead.id, WorkerRow.beat == dead.beat)
    )


def held_by(session: Session, worker_id: str) -> set[int]:
    return set(session.scalars(select(Shard.shard).where(Shard.worker_id == worker_id)))


def claim(session: Session, worker_id: str, most: int) -> set[int]:
    """Take up to so many free shards; returns those."""
    free = select(Shard.shard).where(Shard.worker_id.is_(None)).order_by(Shard.shard).limit(most)
    found = set(session.scalars(free.with_for_update(skip_locked=True)))
    if found:
        session.execute(update(Shard).where(Shard.shard.in_(found)).values(worker_id=worker_id))
    return found


def release(session: Session, worker_id: str, shards: Collection[int]) -> None:
    _be_patient(session)
    mine = (Shard.worker_id == worker_id, Shard.shard.in_(shards))
    session.execute(update(Shard).where(*mine).values(worker_id=None))


def hold(session: Session, worker_id: str, shards: Collection[int]) -> bool:
    """Whether all of these are the worker's, and stay so until the transaction ends."""
    if session.get_bind().dialect.name != "sqlite":  # a write on SQLite has the database to itself
        session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{_HUNG}'"))
    mine = (
        select(Shard.shard)
        .where(Shard.worker_id == worker_id, Shard.shard.in_(shards))
        .order_by(Shard.shard)
    )
    return set(session.scalars(mine.with_for_update(read=True))) == set(shards)


def _be_patient(session: Session) -> None:
    if session.get_bind().dialect.name != "sqlite":
        session.execute(text(f"SET LOCAL lock_timeout = '{_PATIENCE}'"))


def _changed(session: Session, statement: Update | Delete) -> bool:
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
