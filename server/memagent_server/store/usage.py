"""How much there is: what the database takes, and what is in it. Nothing here reads samples, so that it is quick at any size."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from memagent_server.store.models import Run, Snapshot, Stream


@dataclass(frozen=True)
class Usage:
    """`database_bytes` is what the database takes on disk, what was let go of and not yet given back included."""

    database_bytes: int
    runs: int
    samples: int
    """That ever arrived, those of runs that were deleted apart."""
    snapshots: int


def usage(session: Session) -> Usage:
    runs, samples, snapshots = session.execute(
        select(
            select(func.count()).select_from(Run).scalar_subquery(),
            select(func.coalesce(func.sum(Stream.samples), 0)).scalar_subquery(),
            select(func.count()).select_from(Snapshot).scalar_subquery(),
        )
    ).one()
    return Usage(_database_bytes(session), runs, int(samples), snapshots)


def _database_bytes(session: Session) -> int:
    if session.get_bind().dialect.name == "sqlite":
        pages, page_bytes = (
            session.scalar(text(f"PRAGMA {name}")) or 0 for name in ("page_count", "page_size")
        )
        return int(pages) * int(page_bytes)
    return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)
