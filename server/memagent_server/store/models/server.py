"""Tables of the server itself: tokens, ended sessions, workers, and the state of evaluation."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, LargeBinary, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from memagent_server.schemas.base import JsonObject
from memagent_server.store.models.base import Base, Id


class TokenRow(Base):
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
    is_local: Mapped[bool] = mapped_column(default=False, server_default=false())
    """A server on loopback has created it by itself."""


class PublicLinkRow(Base):
    """The public link of a run: whoever has it reads a page of the run without a token."""

    __tablename__ = "public_links"
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """No foreign key: Citus allows none from here to runs, which are distributed."""
    id: Mapped[str] = mapped_column(String(32), unique=True)
    """The secret part of the address, which is signed: see `web/public_links.py`."""
    created_at: Mapped[float]
    created_by: Mapped[str | None] = mapped_column(String(200))
    expires_at: Mapped[float | None]


class EndedSessionRow(Base):
    """A browser's session that ended by a logout, until its cookie expires by itself."""

    __tablename__ = "ended_sessions"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    expires_at: Mapped[float]


class PersonRow(Base):
    """A person who has logged in with the OpenID Connect provider, and the rights of that login."""

    __tablename__ = "people"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    issuer: Mapped[str] = mapped_column(String(500))
    subject: Mapped[str] = mapped_column(String(255))
    """The provider's id of the person; unlike name and e-mail, it never changes."""
    name: Mapped[str] = mapped_column(String(200))
    email: Mapped[str | None] = mapped_column(String(320))
    scope: Mapped[str | None] = mapped_column(String(20))
    """read or admin; None if no group of the last login opens this server."""
    projects: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    admin_projects: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Those that a person of scope read may change."""
    session_series: Mapped[int] = mapped_column(default=0, server_default="0")
    """Cookies of an earlier series are refused: adding 1 ends all sessions."""
    created_at: Mapped[float]
    last_seen_at: Mapped[float]

    __table_args__ = (UniqueConstraint("issuer", "subject", name="uq_people_issuer_subject"),)


class ChangeRow(Base):
    """A change by a person or a token: an entry of the audit log."""

    __tablename__ = "changes"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    at: Mapped[float]
    name: Mapped[str] = mapped_column(String(200))
    """Of the person or the token."""
    email: Mapped[str | None] = mapped_column(String(320))
    method: Mapped[str] = mapped_column(String(10))
    route: Mapped[str] = mapped_column(String(200))
    subject: Mapped[str] = mapped_column(String(200))
    """Ids and project that the request names."""
    status: Mapped[int]
    values: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """What changed, as of `schemas.changes.ValueChange`."""

    __table_args__ = (Index("ix_changes_at", "at"),)


SHARDS = 64
"""As many workers can share the work, at most."""


class EvaluationMarkRow(Base):
    """How far the alerts of a stream are decided, and their states then. Written with every change
    of an
    alert.
    """

    __tablename__ = "watches"
    stream_id: Mapped[int] = mapped_column(
        ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True
    )
    seq: Mapped[int]
    """The last sample that was decided on, counted like `Chunk.seq`."""
    states: Mapped[JsonObject] = mapped_column(default=dict)
    """{rule: state, severity, in_a_row, since}"""


class ForecasterStateRow(Base):
    """A forecaster's state, so that another worker need not read the stream's whole past.

    A state of another forecaster version is ignored.
    """

    __tablename__ = "recollections"
    stream_id: Mapped[int] = mapped_column(
        ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True
    )
    seq: Mapped[int]
    """The last sample that it has seen, counted like `Chunk.seq`."""
    state: Mapped[bytes] = mapped_column(LargeBinary)


class WorkerRow(Base):
    """A worker that is alive, or dead and not removed yet: see `store/leases.py`."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    beat: Mapped[int]
    place: Mapped[str | None] = mapped_column(String(200))
    pid: Mapped[int]
    host: Mapped[str] = mapped_column(String(200))
    started_at: Mapped[float]
    seen_at: Mapped[float]


class ShardRow(Base):
    """A share of all runs and channels, and its worker. The migration creates the SHARDS rows."""

    __tablename__ = "shards"
    shard: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    worker_id: Mapped[str | None] = mapped_column(ForeignKey("workers.id", ondelete="SET NULL"))

    __table_args__ = (Index("ix_shards_worker", "worker_id"),)
