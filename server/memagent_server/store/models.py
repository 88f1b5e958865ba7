"""Tables. Everything people filter by is a plain row; samples are opaque chunks whose layout `memagent.wire.columns` owns.

A run has ranks and streams (rank x device x attempt, and one for scalars), a stream has chunks and rollups. Alerts of one run with one
rule and cause fold into an incident. Alerts have transitions, transitions cause notifications: the outbox, which is written in the
transaction of the transition and delivered later.
Timestamps are UTC seconds since the Unix epoch as floats, the same on SQLite and PostgreSQL; names end in `_at`.
A change here needs a migration; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
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
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

RUN_STATUSES = ("running", "completed", "failed", "oom", "lost_contact")
ALERT_STATES = ("pending", "firing", "averted", "finished", "oom", "lost_contact", "ok")
"""`ok` is an alert that was pending and never confirmed."""
OPEN_ALERT_STATES = ("pending", "firing")
KEPT = ("samples", "rollups", "record")
"""What a run still has, most to least: see `store/retention.py`."""
SHARDS = 64
"""As many workers can share the work, at most."""
NOTIFICATION_STATES = ("waiting", "leased", "sent", "dead", "skipped")

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements INTEGER PRIMARY KEY only


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger, float: Float(53), dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


_KEEPS_MORE = "keeps <> 'record'"
_DIED = "status IN ('oom', 'lost_contact')"


class Run(Base):
    """One launch of a job, all ranks."""

    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    project: Mapped[str] = mapped_column(String(200))
    name: Mapped[str] = mapped_column(String(200))
    user: Mapped[str | None] = mapped_column(String(200))
    host: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[str] = mapped_column(String(20))
    attempt: Mapped[int] = mapped_column(default=0)
    """The newest attempt any rank has started. Ranks choose theirs apart from each other: see `Rank.is_current`."""
    world_size: Mapped[int] = mapped_column(Integer, default=1)
    total_steps: Mapped[int | None]
    step: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    last_seen_at: Mapped[float]
    finished_at: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(Text)
    config: Mapped[dict[str, Any]] = mapped_column(default=dict)
    tags: Mapped[list[Any]] = mapped_column(default=list)
    """What the list shows and searches; `RunTag` holds the same to filter by."""
    are_tags_edited: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether people have changed the tags: a launch that resumes the run then leaves them alone."""
    environment: Mapped[dict[str, Any]] = mapped_column(default=dict)
    is_archived: Mapped[bool] = mapped_column(default=False, server_default=false())
    peak_ratio: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Highest share of a limit that any of its streams has reached; 0 where none is known."""
    keeps: Mapped[str] = mapped_column(String(20), default="samples", server_default="samples")
    """One of `KEPT`."""

    __table_args__ = (
        Index("ix_runs_archived_created", "is_archived", "created_at", "id"),
        Index("ix_runs_archived_project", "is_archived", "project", "created_at", "id"),
        Index("ix_runs_archived_status", "is_archived", "status", "created_at", "id"),
        Index("ix_runs_archived_project_status", "is_archived", "project", "status", "created_at", "id"),
        Index("ix_runs_status_created", "status", "created_at", "id"),
        Index("ix_runs_archived_name", "is_archived", "name", "id"),
        Index("ix_runs_archived_peak", "is_archived", "peak_ratio", "id"),
        Index(
            "ix_runs_keeps", "keeps", "finished_at", sqlite_where=text(_KEEPS_MORE), postgresql_where=text(_KEEPS_MORE)
        ),
        Index("ix_runs_died", "last_seen_at", sqlite_where=text(_DIED), postgresql_where=text(_DIED)),
    )


class RunTag(Base):
    """A tag of a run. `created_at` is the run's: a list by tag is read from the index in order."""

    __tablename__ = "run_tags"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(200), primary_key=True)
    created_at: Mapped[float]

    __table_args__ = (Index("ix_run_tags_tag", "tag", "created_at", "run_id"),)


class Rank(Base):
    """One rank in one attempt. Current are the ranks of the run's newest launch; their statuses make the run's."""

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
    finished_at: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(Text)
    is_replayed: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its process had ended when it was uploaded (`memagent sync`): it is history, and nobody is alerted."""


class Stream(Base):
    """Samples of one rank and device in one attempt, or its scalars.

    `latest` holds the newest known value of every column, so that lists, metrics and alerts never touch chunks.
    """

    __tablename__ = "streams"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int]
    is_current: Mapped[bool] = mapped_column(default=True)
    """Whether it belongs to the newest launch of the run; lists, metrics and alerts look at current streams only."""
    device: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(20))
    """cuda, mps, xpu, host or scalars"""
    name: Mapped[str] = mapped_column(String(200))
    limit_bytes: Mapped[int | None]
    limit_source: Mapped[str | None] = mapped_column(String(200))
    first_step: Mapped[int | None]
    last_step: Mapped[int | None]
    samples: Mapped[int] = mapped_column(default=0)
    chunks: Mapped[int] = mapped_column(default=0)
    peak_bytes: Mapped[int | None]
    """Most ever allocated, over all samples."""
    peaks: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Most ever read of the columns that a prediction has a figure for: see `streams.PEAK_COLUMNS`."""
    sparkline: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """The course of its memory in a few figures, for lists: see `store/sparkline.py`."""
    last_sample_at: Mapped[float | None]
    latest: Mapped[dict[str, Any]] = mapped_column(default=dict)
    compacted_seq: Mapped[int] = mapped_column(default=-1, server_default="-1")
    """The last sample that stands in a chunk of the final cut: see `store/compaction.py`."""
    rolled_seq: Mapped[int] = mapped_column(default=-1, server_default="-1")
    """The last sample that the rollups hold."""
    is_compacted: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its launch is over and every sample is compacted and rolled up: there is nothing left to do."""

    __table_args__ = (
        UniqueConstraint("run_id", "rank", "attempt", "device", name="uq_streams_run_rank_attempt_device"),
        Index(
            "ix_streams_uncompacted",
            "id",
            sqlite_where=text("is_compacted = 0"),
            postgresql_where=text("NOT is_compacted"),
        ),
    )


class Batch(Base):
    """A batch that was taken in: its key makes a second delivery a no-op."""

    __tablename__ = "batches"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    samples: Mapped[int]
    digest: Mapped[str] = mapped_column(String(32))
    """Of the content, to tell a second delivery from another batch under the same key."""
    received_at: Mapped[float]


class Dropped(Base):
    """Samples a rank had to drop, cumulative by reason, as the agent last said."""

    __tablename__ = "dropped_samples"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int]


class Chunk(Base):
    """Consecutive samples of a stream, packed. `seq` is the place of the last one among all samples of the stream, from 0.

    So a chunk holds the samples `seq - rows + 1` to `seq`, and a reader who knows how far it has read is not disturbed when chunks are
    cut anew. `stats` is msgpack of {column: [min, max, last]}, empty once the rollups have them. Bulk: it has no foreign keys, so that it
    may live in partitions and on other machines; `runs.delete_run` deletes it.
    """

    __tablename__ = "chunks"
    stream_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    first_step: Mapped[int]
    last_step: Mapped[int]
    rows: Mapped[int] = mapped_column(Integer)
    received_at: Mapped[float]
    stats: Mapped[bytes] = mapped_column(LargeBinary)
    packed: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = ({"postgresql_partition_by": "HASH (run_id)"},)


class Rollup(Base):
    """Minimum, maximum and last of every column over consecutive samples of a stream: `rollups.BLOCK` buckets of one level.

    A bucket of level 0 stands for a compacted chunk, one of the next level for two of the level below. Bulk, like chunks.
    """

    __tablename__ = "rollups"
    stream_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    level: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    block: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    first_step: Mapped[int]
    last_step: Mapped[int]
    buckets: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = ({"postgresql_partition_by": "HASH (run_id)"},)


class Event(Base):
    """Something that happened once in a run, told by its agent."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int]
    step: Mapped[int]
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(64))
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)

    __table_args__ = (Index("ix_events_run", "run_id", "id"),)


class Prediction(Base):
    """An estimator's answer for one rank and device; the newest of a method counts."""

    __tablename__ = "predictions"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    device: Mapped[str] = mapped_column(String(200))
    method: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[float]
    peak_allocated_bytes: Mapped[int]
    peak_reserved_bytes: Mapped[int | None]
    peak_device_bytes: Mapped[int | None]
    intervals: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """{level: [low, high]} in bytes: allocated, reserved, device."""
    limit_bytes: Mapped[int | None]
    components: Mapped[dict[str, Any]] = mapped_column(default=dict)
    phases: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    terms: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    assumptions: Mapped[dict[str, Any]] = mapped_column(default=dict)
    advice: Mapped[list[Any]] = mapped_column(default=list)

    __table_args__ = (Index("ix_predictions_run", "run_id", "id"),)


class DeviceContext(Base):
    """What processes held on a GPU apart from tensors, as agents measured it. Unknown versions read `unknown`."""

    __tablename__ = "device_contexts"
    gpu: Mapped[str] = mapped_column(String(200), primary_key=True)
    driver: Mapped[str] = mapped_column(String(100), primary_key=True)
    torch: Mapped[str] = mapped_column(String(100), primary_key=True)
    runs: Mapped[int]
    newest_bytes: Mapped[int]
    low_bytes: Mapped[int]
    high_bytes: Mapped[int]
    updated_at: Mapped[float]


class Snapshot(Base):
    """Who held the memory of one rank and device. `body` is zlib of msgpack {stacks, tensors}, `viewer` zlib of torch's own page: large,
    and read one at a time."""

    __tablename__ = "snapshots"
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

    __table_args__ = (UniqueConstraint("run_id", "rank", "attempt", "seq", name="uq_snapshots_run_rank_attempt_seq"),)


class Forecast(Base):
    """What the forecaster said of a stream after `step`; a row whenever its answer changed materially."""

    __tablename__ = "forecasts"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    stream_id: Mapped[int] = mapped_column(ForeignKey("streams.id", ondelete="CASCADE"))
    at: Mapped[float]
    step: Mapped[int]
    level: Mapped[str] = mapped_column(String(20))
    oom_probability: Mapped[float]
    cause: Mapped[str | None] = mapped_column(String(40))
    eta_step: Mapped[float | None]
    eta_low: Mapped[float | None]
    eta_high: Mapped[float | None]
    eta_s: Mapped[float | None]
    used_bytes: Mapped[int | None]
    limit_bytes: Mapped[int | None]
    growth_bytes_per_step: Mapped[float | None]
    growing_since_step: Mapped[int | None]

    __table_args__ = (Index("ix_forecasts_stream", "stream_id", "id"), Index("ix_forecasts_run", "run_id", "id"))


class Incident(Base):
    """What people are told of once: the alerts of a launch with one rule and one cause, however many ranks have them.

    State and severity are the worst of its alerts'. What people said of it (seen, not now, false alarm) stands here.
    """

    __tablename__ = "incidents"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rule: Mapped[str] = mapped_column(String(40))
    cause: Mapped[str | None] = mapped_column(String(40))
    state: Mapped[str] = mapped_column(String(20))
    severity: Mapped[str] = mapped_column(String(20))
    opened_at: Mapped[float]
    fired_at: Mapped[float | None]
    """When it was confirmed; None while pending, and for what never was."""
    updated_at: Mapped[float]
    closed_at: Mapped[float | None]
    acked_at: Mapped[float | None]
    acked_by: Mapped[str | None] = mapped_column(String(200))
    snoozed_until: Mapped[float | None]
    false_alarm_at: Mapped[float | None]
    note: Mapped[str | None] = mapped_column(Text)
    """The newest words that somebody left with an acknowledgement, a snooze or a false alarm."""

    __table_args__ = (Index("ix_incidents_run", "run_id", "id"), Index("ix_incidents_state", "state", "id"))


class Alert(Base):
    """One rule about one stream of a run, from pending to its end. `version` guards against two workers (`UPDATE ... WHERE`)."""

    __tablename__ = "alerts"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    stream_id: Mapped[int | None] = mapped_column(ForeignKey("streams.id", ondelete="CASCADE"))
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"))
    """None for alerts from before there were incidents."""
    rule: Mapped[str] = mapped_column(String(40))
    severity: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    version: Mapped[int] = mapped_column(default=0)
    opened_at: Mapped[float]
    updated_at: Mapped[float]
    closed_at: Mapped[float | None]
    first_step: Mapped[int]
    step: Mapped[int]
    summary: Mapped[str] = mapped_column(Text, default="")
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)

    __table_args__ = (
        Index("ix_alerts_state", "state", "id"),
        Index("ix_alerts_run", "run_id", "id"),
        Index("ix_alerts_stream", "stream_id"),
        Index("ix_alerts_incident", "incident_id"),
    )


class Transition(Base):
    """Every change of an alert's state or severity, with the facts it was decided on."""

    __tablename__ = "transitions"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    alert_id: Mapped[int] = mapped_column(ForeignKey("alerts.id", ondelete="CASCADE"))
    at: Mapped[float]
    step: Mapped[int]
    from_state: Mapped[str] = mapped_column(String(20))
    to_state: Mapped[str] = mapped_column(String(20))
    severity: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text, default="")
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)

    __table_args__ = (Index("ix_transitions_alert", "alert_id", "id"),)


class Notification(Base):
    """The outbox: one message to one channel about one transition. Leased, sent, then marked: at least once."""

    __tablename__ = "notifications"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    alert_id: Mapped[int] = mapped_column(ForeignKey("alerts.id", ondelete="CASCADE"))
    transition_id: Mapped[int] = mapped_column(ForeignKey("transitions.id", ondelete="CASCADE"))
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"))
    """What it is a chapter of: for each incident and channel, notifications go out in order."""
    channel: Mapped[str] = mapped_column(String(40))
    dedup_key: Mapped[str] = mapped_column(String(200), unique=True)
    state: Mapped[str] = mapped_column(String(20))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[float]
    next_attempt_at: Mapped[float]
    leased_until: Mapped[float | None]
    sent_at: Mapped[float | None]
    last_error: Mapped[str | None] = mapped_column(Text)
    receipt: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What the channel answered and later messages need, such as Slack's ts."""

    __table_args__ = (
        Index("ix_notifications_due", "state", "next_attempt_at"),
        Index("ix_notifications_alert", "alert_id", "id"),
        Index("ix_notifications_transition", "transition_id"),
        Index("ix_notifications_incident", "incident_id", "channel", "id"),
    )


class RuleSetting(Base):
    """How a project wants a rule: on or off, from which severity on it tells people, and its thresholds. Project `*` is all others."""

    __tablename__ = "rules"
    project: Mapped[str] = mapped_column(String(200), primary_key=True)
    rule: Mapped[str] = mapped_column(String(40), primary_key=True)
    is_on: Mapped[bool]
    tells: Mapped[str] = mapped_column(String(20))
    """warning, critical or never"""
    thresholds: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{name: number}, those that differ from the rule's own only."""
    updated_at: Mapped[float]
    updated_by: Mapped[str | None] = mapped_column(String(200))


class Feedback(Base):
    """What somebody said of an incident. It outlives the run, for the forecaster is judged by it."""

    __tablename__ = "feedback"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(20))
    """ack, snooze or false_alarm"""
    by: Mapped[str | None] = mapped_column(String(200))
    note: Mapped[str | None] = mapped_column(Text)
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id", ondelete="SET NULL"))
    run_id: Mapped[str] = mapped_column(String(64))
    project: Mapped[str] = mapped_column(String(200))
    rule: Mapped[str] = mapped_column(String(40))
    cause: Mapped[str | None] = mapped_column(String(40))

    __table_args__ = (Index("ix_feedback_incident", "incident_id"), Index("ix_feedback_project", "project", "id"))


class WatchMark(Base):
    """How far the alerts of a stream have been decided, and the states they were in then: written with every change of an alert."""

    __tablename__ = "watches"
    stream_id: Mapped[int] = mapped_column(ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int]
    """The last sample that was decided on, counted like `Chunk.seq`."""
    states: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{rule: state, severity, in_a_row, since}"""


class Recollection(Base):
    """What a stream's watch knows of its past, so that another worker need not read all of it again: see `alerts.watch.remembered`.

    A state that another version of the forecaster wrote is worth nothing, and is not believed.
    """

    __tablename__ = "recollections"
    stream_id: Mapped[int] = mapped_column(ForeignKey("streams.id", ondelete="CASCADE"), primary_key=True)
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
    """A part of all runs and channels, and the worker that it belongs to now. There are SHARDS rows, made by the migration."""

    __tablename__ = "shards"
    shard: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    worker_id: Mapped[str | None] = mapped_column(ForeignKey("workers.id", ondelete="SET NULL"))

    __table_args__ = (Index("ix_shards_worker", "worker_id"),)


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
