"""Tables from a forecast to the notification about it, and people's feedback."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from memagent_server.schemas.base import JsonObject
from memagent_server.store.models.base import OF_RUN, Base, Id

OPEN_ALERT_STATES = ("pending", "firing")
ENDED_ALERT_STATES = ("averted", "finished", "oom", "lost_contact")
UNCONFIRMED_STATES = ("pending", "ok")


class ForecastRow(Base):
    """The forecast of a stream after `step`; a row for every material change."""

    __tablename__ = "forecasts"
    __mapper_args__ = OF_RUN
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
    predecessor: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (
        Index("ix_forecasts_stream", "stream_id", "id"),
        Index("ix_forecasts_run", "run_id", "id"),
    )


class IncidentRow(Base):
    """The alerts of a launch with one rule and one cause, on any number of ranks: one thing to
    people.

    State and severity are the worst of its alerts. Acknowledgement, snooze and false alarm are
    stored here.
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

    __table_args__ = (
        Index("ix_incidents_run", "run_id", "id"),
        Index("ix_incidents_state", "state", "id"),
    )


class AlertRow(Base):
    """One rule about one stream of a run, from pending to its end.

    `version` guards against two workers (`UPDATE ... WHERE`).
    """

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
    data: Mapped[JsonObject] = mapped_column(default=dict)

    __table_args__ = (
        Index("ix_alerts_state", "state", "id"),
        Index("ix_alerts_run", "run_id", "id"),
        Index("ix_alerts_stream", "stream_id"),
        Index("ix_alerts_incident", "incident_id"),
    )


class TransitionRow(Base):
    """A change of an alert's state or severity, with the input of the decision."""

    __tablename__ = "transitions"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    alert_id: Mapped[int] = mapped_column(ForeignKey("alerts.id", ondelete="CASCADE"))
    at: Mapped[float]
    step: Mapped[int]
    from_state: Mapped[str] = mapped_column(String(20))
    to_state: Mapped[str] = mapped_column(String(20))
    severity: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text, default="")
    data: Mapped[JsonObject] = mapped_column(default=dict)

    __table_args__ = (Index("ix_transitions_alert", "alert_id", "id"),)


class NotificationRow(Base):
    """The outbox: one message to one channel about one transition. Leased, sent, then marked: at
    least
    once.
    """

    __tablename__ = "notifications"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    alert_id: Mapped[int] = mapped_column(ForeignKey("alerts.id", ondelete="CASCADE"))
    transition_id: Mapped[int] = mapped_column(ForeignKey("transitions.id", ondelete="CASCADE"))
    incident_id: Mapped[int | None] = mapped_column(ForeignKey("incidents.id"))
    """Its topic: for each incident and channel, notifications go out in order."""
    channel: Mapped[str] = mapped_column(String(40))
    dedup_key: Mapped[str] = mapped_column(String(200), unique=True)
    state: Mapped[str] = mapped_column(String(20))
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    created_at: Mapped[float]
    next_attempt_at: Mapped[float]
    held_until: Mapped[float | None]
    """The end of the channel's quiet hours; None if it was due at once."""
    leased_until: Mapped[float | None]
    sent_at: Mapped[float | None]
    last_error: Mapped[str | None] = mapped_column(Text)
    receipt: Mapped[JsonObject] = mapped_column(default=dict)
    """The channel's answer as far as later messages need it, such as Slack's ts."""

    __table_args__ = (
        Index("ix_notifications_due", "state", "next_attempt_at"),
        Index("ix_notifications_alert", "alert_id", "id"),
        Index("ix_notifications_transition", "transition_id"),
        Index("ix_notifications_incident", "incident_id", "channel", "id"),
    )


class RuleSettingRow(Base):
    """A project's setting of a rule: on or off, the lowest severity that notifies, and thresholds.

    Project `*` stands for all others.
    """

    __tablename__ = "rules"
    project: Mapped[str] = mapped_column(String(200), primary_key=True)
    rule: Mapped[str] = mapped_column(String(40), primary_key=True)
    is_on: Mapped[bool]
    tells: Mapped[str] = mapped_column(String(20))
    """warning, critical or never"""
    thresholds: Mapped[JsonObject] = mapped_column(default=dict)
    """{name: number}, those that differ from the rule's own only."""
    updated_at: Mapped[float]
    updated_by: Mapped[str | None] = mapped_column(String(200))


class ColumnRuleRow(Base):
    """A project's rule about a column: see `alerts/column_monitor.py`. Project `*` is every one."""

    __tablename__ = "column_rules"
    project: Mapped[str] = mapped_column(String(200), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    column: Mapped[str] = mapped_column(String(128))
    test: Mapped[str] = mapped_column(String(20))
    value: Mapped[float]
    for_s: Mapped[float]
    level: Mapped[str] = mapped_column(String(20))
    updated_at: Mapped[float]
    updated_by: Mapped[str | None] = mapped_column(String(200))


class RouteRow(Base):
    """A route of notifications: see `alerts/routing.py`. Lists of patterns are JSON."""

    __tablename__ = "routes"
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    position: Mapped[int]
    projects: Mapped[list[Any]]
    users: Mapped[list[Any]]
    tags: Mapped[list[Any]]
    rules: Mapped[list[Any]]
    severity: Mapped[str] = mapped_column(String(20))
    channels: Mapped[list[Any]]
    goes_on: Mapped[bool]


class ChannelScheduleRow(Base):
    """Quiet hours and digests of a channel: see `schemas/schedules.py`."""

    __tablename__ = "channel_schedules"
    channel: Mapped[str] = mapped_column(String(40), primary_key=True)
    time_zone: Mapped[str] = mapped_column(String(60))
    quiet_from: Mapped[str | None] = mapped_column(String(5))
    quiet_to: Mapped[str | None] = mapped_column(String(5))
    quiet_days: Mapped[list[Any]] = mapped_column(server_default="[]")
    digest_at: Mapped[str] = mapped_column(String(5))
    daily: Mapped[bool]
    waste_day: Mapped[str | None] = mapped_column(String(10))
    projects: Mapped[list[Any]]


class DigestRow(Base):
    """How far the digests of a channel are sent: see `store/schedules.py`."""

    __tablename__ = "digests"
    channel: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10), primary_key=True)
    done_until: Mapped[float]
    sent_at: Mapped[float | None]
    attempts: Mapped[int]
    next_attempt_at: Mapped[float]
    """Also the end of a lease: an attempt that began moves it on."""
    last_error: Mapped[str | None] = mapped_column(Text)


class FeedbackRow(Base):
    """People's feedback on an incident. It outlives the run: the forecaster is judged by it."""

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

    __table_args__ = (
        Index("ix_feedback_incident", "incident_id"),
        Index("ix_feedback_project", "project", "id"),
    )
