"""Who may come in.

How the workers share the work, and how far each stream has come.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from memagent_server.store.models.base import Base, Id


class Token(Base):
    """An access token, stored as a keyed hash; the token itself is shown once, when it is made."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(200))
    scope: Mapped[str] = mapped_column(String(20))
    """ingest, read or admin"""
    projects: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """The projects whose runs it opens; none named is all."""
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    last_used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


SHARDS = 64
"""As many workers can share the work, at most."""


class EvaluationMark(Base):
    """How far the alerts of a stream have been decided, and the states they were in then: written
    with every change of an alert.
    """

    __tablename__ = "watches"
    stream_id: Mapped[int] = mapped_column(
        ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True
    )
    seq: Mapped[int]
    """The last sample that was decided on, counted like `Chunk.seq`."""
    states: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{rule: state, severity, in_a_row, since}"""


class ForecasterState(Base):
    """What a stream's watch knows of its past, so that another worker need not read all of it
    again: see `alerts.watch.remembered`.

    A state that another version of the forecaster wrote is worth nothing, and is not believed.
    """

    __tablename__ = "recollections"
    stream_id: Mapped[int] = mapped_column(
        ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True
    )
    seq: Mapped[int]
    """The last sample that it has seen, counted like `Chunk.seq`."""
    state: Mapped[bytes] = mapped_column(LargeBinary)


class WorkerRow(Base):
    """A worker that is at work, or was and is not buried yet: see `store/leases.py`."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    beat: Mapped[int]
    place: Mapped[str | None] = mapped_column(String(200))
    pid: Mapped[int]
    host: Mapped[str] = mapped_column(String(200))
    started_at: Mapped[float]
    seen_at: Mapped[float]


class Shard(Base):
    """A part of all runs and channels, and the worker that it belongs to now. There are SHARDS
    rows, made by the migration.
    """

    __tablename__ = "shards"
    shard: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    worker_id: Mapped[str | None] = mapped_column(ForeignKey("workers.id", ondelete="SET NULL"))

    __table_args__ = (Index("ix_shards_worker", "worker_id"),)
