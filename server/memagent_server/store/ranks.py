"""Ranks of a run, and how their ends make the run's.

1. A rank that starts again with a newer attempt begins a new *launch*: every older rank and stream stops being current.
2. The run is running while any current rank is; after that the worst status of the current ranks is the run's.
3. A rank that was given up as lost and speaks again is running again.
4. A rank of a process that is known to have ended (`live` is False) is never running: lost_contact until its own end says better.
5. A rank that ends twice keeps the worse status, so that the order of deliveries does not matter.
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from memagent_server.store.models import Rank, Run, Stream

_FROM_WORST = ("running", "oom", "failed", "lost_contact", "completed")


def enter_rank(
    session: Session, run: Run, rank: int, attempt: int, now: float, *, live: bool = True
) -> Rank:
    """The row of a rank's attempt, made if it is new; marks it as seen. The run's row must be locked.

    `live` is False for what `memagent sync` uploads: the process has ended, whatever its last message says.
    """
    row = session.get(Rank, (run.id, rank, attempt))
    if row is None:
        row = _enter_new(session, run, rank, attempt, now)
    if not live:
        return _replay(session, run, row, now)
    row.last_seen_at, row.is_replayed = now, False
    if row.is_current:
        run.last_seen_at = now
        if row.status == "lost_contact":
            row.status, row.finished_at, row.error = "running", None, None
            settle(session, run, now)
    return row


def is_entered(status: str, is_replayed: bool, *, live: bool) -> bool:
    """Whether `enter_rank` would change nothing but when the rank was seen, for a rank that is there."""
    if not live:
        return is_replayed and status != "running"
    return not is_replayed and status != "lost_contact"


def _replay(session: Session, run: Run, row: Rank, now: float) -> Rank:
    row.is_replayed = True
    if row.status == "running":
        row.status, row.finished_at = "lost_contact", now
    if row.is_current:
        settle(session, run, now)
    return row


def settle(session: Session, run: Run, now: float) -> None:
    """Make the run's status from those of its current ranks."""
    session.flush()
    ranks = session.scalars(
        select(Rank).where(Rank.run_id == run.id, Rank.is_current).order_by(Rank.rank)
    ).all()
    worst = worst_of(*(row.status for row in ranks))
    if worst == "running":
        run.status, run.finished_at, run.error = "running", None, None
        return
    run.status = worst
    run.finished_at = max(
        (row.finished_at for row in ranks if row.finished_at is not None), default=now
    )
    run.error = next((row.error for row in ranks if row.status == worst and row.error), None)


def worst_of(*statuses: str) -> str:
    """The one that counts: running while there is anything running, then oom, failed, lost_contact, completed."""
    return min(statuses, key=_FROM_WORST.index)


def _enter_new(session: Session, run: Run, rank: int, attempt: int, now: float) -> Rank:
    newest = session.scalar(
        select(func.max(Rank.attempt)).where(Rank.run_id == run.id, Rank.rank == rank)
    )
    is_newest = newest is None or attempt > newest
    if newest is not None and is_newest and _is_current(session, run, rank, newest):
        _begin_launch(session, run)
    row = Rank(
        run_id=run.id,
        rank=rank,
        attempt=attempt,
        is_current=is_newest,
        status="running",
        next_seq=0,
        first_seen_at=now,
        last_seen_at=now,
    )
    session.add(row)
    if is_newest:
        run.attempt = max(run.attempt, attempt)
        settle(session, run, now)
    return row


def _is_current(session: Session, run: Run, rank: int, attempt: int) -> bool:
    row = session.get(Rank, (run.id, rank, attempt))
    return row is not None and row.is_current


def _begin_launch(session: Session, run: Run) -> None:
    session.execute(update(Rank).where(Rank.run_id == run.id).values(is_current=False))
    session.execute(update(Stream).where(Stream.run_id == run.id).values(is_current=False))
    run.step = 0
