"""Ranks of a run, and the run's status from theirs.

1. A rank that starts again with a newer attempt begins a new *launch*: every older rank and stream
   stops being current.
2. A run is running while any current rank is. After that it has the worst status of its current
   ranks.
3. A lost rank that reports again is running again.
4. A replayed rank (`live` is False) has ended already: it's lost_contact until its own end arrives.
5. A rank that ends twice keeps the worse status, so the order of deliveries doesn't matter.
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from memagent.units import format_bytes
from memagent.wire.messages import KILLING_LIMITS
from memagent_server.store.models import RankRow, RunRow, StreamRow

OOM_KILLER_RATIO = 0.9
"""Share of the host's limit in the last sample (up to 1 s old) that makes the OOM killer likely."""
_FROM_WORST = ("running", "oom", "failed", "lost_contact", "completed")


def enter_rank(
    session: Session, run: RunRow, rank: int, attempt: int, now: float, *, live: bool = True
) -> RankRow:
    """Return the row of a rank's attempt, create it if it's new, and mark it as seen.

    `live` is False for uploads of `memagent sync`: the process has ended, whatever its last message
    says. The run's row must be locked.
    """
    row = session.get(RankRow, (run.id, rank, attempt))
    if row is None:
        row = _create(session, run, rank, attempt, now)
    if not live:
        row.is_replayed = True
        # a process whose messages are replayed has ended, whatever they say
        if row.status == "running":
            row.status = "lost_contact"
            row.finished_at = now
        if row.is_current:
            settle(session, run, now)
        return row
    row.last_seen_at = now
    row.is_replayed = False
    if row.is_current:
        run.last_seen_at = now
        if row.status == "lost_contact":
            row.status = "running"
            row.finished_at = None
            row.error = None
            settle(session, run, now)
    return row


def is_entered(status: str, is_replayed: bool, *, live: bool) -> bool:
    """Return True if `enter_rank` would change only when an existing rank was seen."""
    if not live:
        return is_replayed and status != "running"
    return not is_replayed and status != "lost_contact"


def settle(session: Session, run: RunRow, now: float) -> None:
    """Set the run's status, end and error from its current ranks."""
    # the query below must see the changes of this transaction
    session.flush()
    ranks = session.scalars(
        select(RankRow).where(RankRow.run_id == run.id, RankRow.is_current).order_by(RankRow.rank)
    ).all()
    run.status = worst_of(*(row.status for row in ranks))
    if run.status == "running":
        run.finished_at = None
        run.error = None
        return
    ends = (row.finished_at for row in ranks if row.finished_at is not None)
    run.finished_at = max(ends, default=now)
    # of the rank that decided the status
    errors = (row.error for row in ranks if row.status == run.status and row.error)
    run.error = next(errors, None)


def worst_of(*statuses: str) -> str:
    """Return running if any is, else the first of oom, failed, lost_contact, completed."""
    return min(statuses, key=_FROM_WORST.index)


def alive_ranks(session: Session, seen_after: float) -> dict[str, set[int]]:
    """Return {run: running ranks that were seen after `seen_after`} of all running runs."""
    query = (
        select(RankRow.run_id, RankRow.rank)
        .join(RunRow, RunRow.id == RankRow.run_id)
        .where(
            RunRow.status == "running",
            RankRow.is_current,
            RankRow.status == "running",
            RankRow.last_seen_at >= seen_after,
        )
    )
    alive: dict[str, set[int]] = {}
    for run_id, rank in session.execute(query):
        alive.setdefault(run_id, set()).add(rank)
    return alive


def oom_killer_hint(session: Session, rank: RankRow) -> str | None:
    """Return a sentence if the kernel's OOM killer probably ended a lost rank, else None.

    The killer leaves a process no time to report anything, so the last sample has to do.
    """
    host = session.scalar(
        select(StreamRow).where(
            StreamRow.run_id == rank.run_id,
            StreamRow.rank == rank.rank,
            StreamRow.attempt == rank.attempt,
            StreamRow.kind == "host",
        )
    )
    if host is None or host.limit_source not in KILLING_LIMITS:
        return None
    used = host.latest.get("allocated_bytes")
    limit = host.latest.get("limit_bytes") or host.limit_bytes
    if not used or not limit or used < OOM_KILLER_RATIO * limit:
        return None
    return (
        "probably killed by the kernel's out-of-memory killer:"
        f" {format_bytes(used)} of {format_bytes(limit)} ({host.limit_source}) were in use at step"
        f" {host.last_step or 0:,}, the last one reported"
    )


def _create(session: Session, run: RunRow, rank: int, attempt: int, now: float) -> RankRow:
    newest = session.scalar(
        select(func.max(RankRow.attempt)).where(RankRow.run_id == run.id, RankRow.rank == rank)
    )
    # an older attempt may arrive late, by memagent sync
    is_newest = newest is None or attempt > newest
    if newest is not None and is_newest:
        previous = session.get(RankRow, (run.id, rank, newest))
        if previous is not None and previous.is_current:
            _begin_launch(session, run)
    row = RankRow(
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


def _begin_launch(session: Session, run: RunRow) -> None:
    session.execute(update(RankRow).where(RankRow.run_id == run.id).values(is_current=False))
    session.execute(update(StreamRow).where(StreamRow.run_id == run.id).values(is_current=False))
    run.step = 0
