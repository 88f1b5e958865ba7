"""Counts of what the database holds, for metrics and the retention page. None of them reads
samples, so all are fast at any size.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Float, cast, func, select, text
from sqlalchemy.orm import Session

from memagent_server.store.models import DroppedRow, RunRow, SnapshotRow, StreamRow


@dataclass(frozen=True)
class Usage:
    """`database_bytes` is the size on disk, with deleted data that was not given back yet."""

    database_bytes: int
    runs: int
    samples: int
    """Samples ever received, without those of deleted runs."""
    snapshots: int


def usage(session: Session) -> Usage:
    """Return the size and content of the database."""
    runs, samples, snapshots = session.execute(
        select(
            select(func.count()).select_from(RunRow).scalar_subquery(),
            select(func.coalesce(func.sum(StreamRow.samples), 0)).scalar_subquery(),
            select(func.count()).select_from(SnapshotRow).scalar_subquery(),
        )
    ).one()
    return Usage(_database_bytes(session), runs, int(samples), snapshots)


def count_samples(session: Session) -> int:
    """Return the number of samples ever received, without those of deleted runs."""
    return int(session.scalar(select(func.sum(StreamRow.samples))) or 0)


def count_runs_by_status(session: Session) -> dict[str, int]:
    """Return {status: runs}."""
    query = select(RunRow.status, func.count()).group_by(RunRow.status)
    return dict(session.execute(query).all())


def dropped_samples(session: Session, run_id: str | None = None) -> dict[str, int]:
    """Return {reason: samples that agents dropped}, of one run or of all; exact below 2**53.

    The sum is one of floats: SQLite raises an error if a sum of integers exceeds 63 bits.
    """
    total = func.sum(cast(DroppedRow.count, Float(53)))
    query = select(DroppedRow.reason, total).group_by(DroppedRow.reason)
    if run_id is not None:
        query = query.where(DroppedRow.run_id == run_id)
    return {reason: int(count) for reason, count in session.execute(query)}


def _database_bytes(session: Session) -> int:
    if session.get_bind().dialect.name == "sqlite":
        pages, page_bytes = (
            session.scalar(text(f"PRAGMA {name}")) or 0 for name in ("page_count", "page_size")
        )
        return int(pages) * int(page_bytes)
    return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)
