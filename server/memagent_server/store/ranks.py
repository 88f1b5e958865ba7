"""Ranks of a run, and the run's status from theirs.

1. A rank that starts again with a newer attempt begins a new *launch*: every older rank and stream
   stops being current.
2. A run is running while any current rank is. After that it has the worst status of its current
   ranks.
3. A lost rank that reports again is running again.
4. A replayed rank (`live` is False) has ended already: it's lost_contact until its own end arrives,
   since its newest sample.
5. A rank that ends twice keeps the worse status, and of two equal ones the later time, so the order
   of deliveries doesn't matter.
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from memagent.errors import WireError
from memagent.units import format_bytes
from memagent.wire.messages import KILLING_LIMITS
from memagent_server.store.models import RankRow, RunRow, StreamRow

OOM_KILLER_RATIO = 0.9
"""Share of the host's limit in the last sample (up to 1 s old) that makes the OOM killer likely."""
OOM_KILLER_TEXT = "probably killed by the kernel's out-of-memory killer"
MAX_RANKS = 131_072
"""Limit for a run with all its launches: sixteen of 8,192 ranks."""
_FROM_WORST = ("running", "oom", "failed", "lost_contact", "stopped", "completed")


def enter_rank(
    session: Session,
    run: RunRow,
    rank: int,
    attempt: int,
    now: float,
    *,
    live: bool = True,
    started_at: float | None = None,
) -> RankRow:
    """Return the row of a rank's attempt, create it if it's new, and mark it as seen.

    `live` is False for uploads of `memagent sync`: the process has ended, whatever its last message
    says. `started_at` is by the clock of its host. The run's row must be locked.
    """
    row = session.get(RankRow, (run.id, rank, attempt))
    if row is None:
        row = _create(session, run, rank, attempt, now)
    if row.started_at is None:
        row.started_at = started_at
    if not live:
        row.is_replayed = True
        # a process whose messages are replayed has ended, whatever they say
        if row.status == "running":
            row.status = "lost_contact"
            row.finished_at = row.started_at or now
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
            _reopen(run)
    return row


def end_replayed(
    session: Session, run_id: str, rank: int, attempt: int, last_time_s: float
) -> None:
    """End a replayed rank that reported no end with its newest sample.

    The run's row must be locked.
    """
    run, row = session.get(RunRow, run_id), session.get(RankRow, (run_id, rank, attempt))
    if run is None or row is None or not row.is_replayed or row.status != "lost_contact":
        return
    # else `finished_at` is the upload's time, which is later than any sample
    was_told = row.started_at is not None
    row.finished_at = max(row.finished_at or 0.0, last_time_s) if was_told else last_time_s
    if row.is_current:
        settle(session, run, last_time_s)


def is_entered(status: str, is_replayed: bool, *, live: bool) -> bool:
    """Return True if `enter_rank` would change only when an existing rank was seen."""
    if not live:
        return is_replayed and status != "running"
    return not is_replayed and status != "lost_contact"


def settle(session: Session, run: RunRow, now: float) -> None:
    """Set the run's status, end and error from its current ranks."""
    # the queries below must see the changes of this transaction
    session.flush()
    current = (RankRow.run_id == run.id, RankRow.is_current)
    ends = select(RankRow.status, func.max(RankRow.finished_at)).where(*current)
    by_status = dict(session.execute(ends.group_by(RankRow.status)).all())
    run.status = worst_of(*by_status)
    if run.status == "running":
        _reopen(run)
        return
    run.finished_at = max((end for end in by_status.values() if end is not None), default=now)
    # of the first rank that decided the status
    decided = (*current, RankRow.status == run.status, RankRow.error != "")
    run.error = session.scalar(
        select(RankRow.error).where(*decided).order_by(RankRow.rank).limit(1)
    )


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
        f"{OOM_KILLER_TEXT}:"
        f" {format_bytes(used)} of {format_bytes(limit)} ({host.limit_source}) were in use at step"
        f" {host.last_step or 0:,}, the last one reported"
    )


def _create(session: Session, run: RunRow, rank: int, attempt: int, now: float) -> RankRow:
    """Create a rank's row. Raises WireError for one more than MAX_RANKS."""
    if (session.scalar(select(func.count()).where(RankRow.run_id == run.id)) or 0) >= MAX_RANKS:
        raise WireError(f"A run has at most {MAX_RANKS} ranks, each counted once a launch.")
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
        _reopen(run)
    return row


def _reopen(run: RunRow) -> None:
    """Set the state of a run with a running rank."""
    run.status = "running"
    run.finished_at = None
    run.error = None
    run.failure = None
    run.failure_title = None


def _begin_launch(session: Session, run: RunRow) -> None:
    for table in (RankRow, StreamRow):
        current = (table.run_id == run.id, table.is_current)
        session.execute(update(table).where(*current).values(is_current=False))
    run.step = 0
