"""Tables of runs and what is sent once about them: ranks, tags, events, predictions, snapshots."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from memagent_server.schemas.base import JsonObject
from memagent_server.store.models.base import OF_RUN, Base, Id

KEPT = ("samples", "rollups", "record")
"""The data that a run still has, most to least: see `store/retention.py`."""

_KEEPS_MORE = "keeps <> 'record'"
_FAILED = "failure IS NOT NULL"
_HAS_PROGRAM = "program IS NOT NULL"
_DIED = "status IN ('oom', 'lost_contact')"


class RunRow(Base):
    """One run with all its launches and ranks."""

    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project: Mapped[str] = mapped_column(String(200))
    name: Mapped[str] = mapped_column(String(200))
    is_name_edited: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether people have changed the name: a launch that resumes the run then leaves it alone."""
    user: Mapped[str | None] = mapped_column(String(200))
    host: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[str] = mapped_column(String(20))
    attempt: Mapped[int] = mapped_column(default=0)
    """The newest attempt any rank has started. Ranks choose theirs apart from each other: see
    `RankRow.is_current`.
    """
    world_size: Mapped[int] = mapped_column(Integer, default=1)
    total_steps: Mapped[int | None]
    step: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    last_seen_at: Mapped[float]
    finished_at: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(Text)
    failure: Mapped[str | None] = mapped_column(String(16))
    """The fingerprint of how it failed, which other runs may share: see `store/failures.py`."""
    failure_title: Mapped[str | None] = mapped_column(Text)
    program: Mapped[str | None] = mapped_column(String(32))
    """The hash of script and configuration that its reruns share: see `wire/program.py`."""
    config: Mapped[JsonObject] = mapped_column(default=dict)
    tags: Mapped[list[Any]] = mapped_column(default=list)
    """Tags as the list shows and searches them; `RunTagRow` holds the same to filter by."""
    are_tags_edited: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether people have changed the tags: a launch that resumes the run then leaves them
    alone.
    """
    environment: Mapped[JsonObject] = mapped_column(default=dict)
    notes: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Markdown of people about the run."""
    is_archived: Mapped[bool] = mapped_column(default=False, server_default=false())
    peak_ratio: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Highest share of a limit that any of its streams has reached; 0 where none is known."""
    keeps: Mapped[str] = mapped_column(String(20), default="samples", server_default="samples")
    """One of `KEPT`."""
    changed_at: Mapped[float] = mapped_column(
        default=time.time, onupdate=time.time, server_default="0"
    )
    """Time of the newest change but for those that each batch of a running run makes, by the
    server's clock: see `store/run_table.py`.
    """

    __table_args__ = (
        # all that the table of runs in memory reads about each run
        Index("ix_runs_changed", "changed_at", "id", "project", "status", "is_archived"),
        Index("ix_runs_archived_created", "is_archived", "created_at", "id"),
        Index("ix_runs_archived_project", "is_archived", "project", "created_at", "id"),
        Index("ix_runs_archived_status", "is_archived", "status", "created_at", "id"),
        Index(
            "ix_runs_archived_project_status",
            "is_archived",
            "project",
            "status",
            "created_at",
            "id",
        ),
        Index("ix_runs_status_created", "status", "created_at", "id"),
        Index("ix_runs_archived_name", "is_archived", "name", "id"),
        Index("ix_runs_archived_peak", "is_archived", "peak_ratio", "id"),
        Index(
            "ix_runs_keeps",
            "keeps",
            "finished_at",
            sqlite_where=text(_KEEPS_MORE),
            postgresql_where=text(_KEEPS_MORE),
        ),
        Index(
            "ix_runs_failure",
            # all that a failure's figures need: rows of runs are large
            "failure",
            "project",
            "user",
            "finished_at",
            "started_at",
            "created_at",
            "failure_title",
            sqlite_where=text(_FAILED),
            postgresql_where=text(_FAILED),
        ),
        Index(
            "ix_runs_program",
            "program",
            "project",
            "created_at",
            sqlite_where=text(_HAS_PROGRAM),
            postgresql_where=text(_HAS_PROGRAM),
        ),
        Index(
            "ix_runs_died", "last_seen_at", sqlite_where=text(_DIED), postgresql_where=text(_DIED)
        ),
    )


class RunDeletionRow(Base):
    """A run that was deleted lately: tables of runs in memory learn it from here."""

    __tablename__ = "run_deletions"
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    deleted_at: Mapped[float]

    __table_args__ = (Index("ix_run_deletions_deleted", "deleted_at"),)


class RunViewRow(Base):
    """A choice of runs, columns, order and groups that people have given a name."""

    __tablename__ = "run_views"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    project: Mapped[str] = mapped_column(String(200))
    """`*` for a view of all projects."""
    name: Mapped[str] = mapped_column(String(100))
    query: Mapped[JsonObject] = mapped_column(default=dict)
    """Parameters of the list's address: see `store/run_views.py`."""
    saved_at: Mapped[float]
    saved_by: Mapped[str | None] = mapped_column(String(200))

    __table_args__ = (UniqueConstraint("project", "name", name="uq_run_views_project_name"),)


class ResolvedFailureRow(Base):
    """A failure of several runs that people have resolved. Without a row it's open."""

    __tablename__ = "resolved_failures"
    fingerprint: Mapped[str] = mapped_column(String(16), primary_key=True)
    project: Mapped[str] = mapped_column(String(200))
    resolved_at: Mapped[float]
    resolved_by: Mapped[str | None] = mapped_column(String(200))


class RunTagRow(Base):
    """A tag of a run. `created_at` is the run's: a list by tag is read from the index in order."""

    __tablename__ = "run_tags"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(200), primary_key=True)
    created_at: Mapped[float]

    __table_args__ = (Index("ix_run_tags_tag", "tag", "created_at", "run_id"),)


class RankRow(Base):
    """One rank in one attempt. The current ranks, of the newest launch, decide the run's status."""

    __tablename__ = "ranks"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    is_current: Mapped[bool]
    status: Mapped[str] = mapped_column(String(20))
    next_seq: Mapped[int] = mapped_column(default=0)
    """The first batch that is not there yet."""
    first_seen_at: Mapped[float]
    last_seen_at: Mapped[float]
    started_at: Mapped[float | None]
    """By the clock of its host, as `finished_at` if it said it; None if it didn't say it."""
    finished_at: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(Text)
    is_replayed: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its process had ended when it was uploaded (`memagent sync`): it is history, and
    nobody is alerted.
    """


class EventRow(Base):
    """Something that happened once in a run, as its agent reported it."""

    __tablename__ = "events"
    __mapper_args__ = OF_RUN
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int]
    step: Mapped[int]
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(64))
    data: Mapped[JsonObject] = mapped_column(default=dict)
    is_pending: Mapped[bool] = mapped_column(default=False, server_default=false())
    """True until the worker has made an alert of it: see `alerts/script_alerts.py`."""

    __table_args__ = (
        Index("ix_events_run", "run_id", "id"),
        Index(
            "ix_events_pending",
            "run_id",
            "id",
            sqlite_where=text("is_pending"),
            postgresql_where=text("is_pending"),
        ),
    )


class PredictionRow(Base):
    """An estimate for one rank and device; the newest of a method counts."""

    __tablename__ = "predictions"
    __mapper_args__ = OF_RUN
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    device: Mapped[str] = mapped_column(String(200))
    method: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[float]
    peak_allocated_bytes: Mapped[int]
    peak_reserved_bytes: Mapped[int | None]
    peak_device_bytes: Mapped[int | None]
    intervals: Mapped[JsonObject] = mapped_column(default=dict, server_default="{}")
    """{level: [low, high]} in bytes: allocated, reserved, device."""
    limit_bytes: Mapped[int | None]
    components: Mapped[JsonObject] = mapped_column(default=dict)
    phases: Mapped[JsonObject] = mapped_column(default=dict, server_default="{}")
    terms: Mapped[JsonObject] = mapped_column(default=dict, server_default="{}")
    assumptions: Mapped[JsonObject] = mapped_column(default=dict)
    advice: Mapped[list[Any]] = mapped_column(default=list)

    __table_args__ = (Index("ix_predictions_run", "run_id", "id"),)


class RehearsalRow(Base):
    """A rehearsed script. Runs with its fingerprint get its prediction."""

    __tablename__ = "rehearsals"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    project: Mapped[str] = mapped_column(String(200))
    fingerprint: Mapped[str] = mapped_column(String(64))
    script: Mapped[str] = mapped_column(String(200))
    gpu: Mapped[str] = mapped_column(String(200))
    world_size: Mapped[int] = mapped_column(Integer)
    user: Mapped[str | None] = mapped_column(String(200))
    host: Mapped[str | None] = mapped_column(String(200))
    fits: Mapped[bool]
    created_at: Mapped[float]
    prediction: Mapped[JsonObject] = mapped_column(default=dict)
    """The fields of a `PredictionMessage`."""

    __table_args__ = (Index("ix_rehearsals_fingerprint", "fingerprint", "project", "id"),)


class DeviceContextRow(Base):
    """GPU memory of processes outside of tensors, as measured. Unknown versions are `unknown`."""

    __tablename__ = "device_contexts"
    gpu: Mapped[str] = mapped_column(String(200), primary_key=True)
    driver: Mapped[str] = mapped_column(String(100), primary_key=True)
    torch: Mapped[str] = mapped_column(String(100), primary_key=True)
    runs: Mapped[int]
    newest_bytes: Mapped[int]
    low_bytes: Mapped[int]
    high_bytes: Mapped[int]
    updated_at: Mapped[float]


class SnapshotRow(Base):
    """The holders of the memory of one rank and device.

    `body` is zlib of msgpack {stacks, tensors}, `viewer` zlib of torch's own page: large, read one
    at a
    time.
    """

    __tablename__ = "snapshots"
    __mapper_args__ = OF_RUN
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int]
    seq: Mapped[int]
    device: Mapped[str] = mapped_column(String(200))
    step: Mapped[int]
    at: Mapped[float]
    method: Mapped[str] = mapped_column(String(20))
    why: Mapped[str] = mapped_column(Text)
    suspects: Mapped[list[Any]] = mapped_column(default=list)
    notes: Mapped[list[Any]] = mapped_column(default=list)
    has_stacks: Mapped[bool] = mapped_column(default=False)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    has_viewer: Mapped[bool] = mapped_column(default=False, server_default=false())
    viewer: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)

    __table_args__ = (
        UniqueConstraint(
            "run_id", "rank", "attempt", "seq", name="uq_snapshots_run_rank_attempt_seq"
        ),
    )
