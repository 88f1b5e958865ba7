"""Alerts, incidents, notifications, rules, and the accuracy of warnings."""

from __future__ import annotations

from typing import Literal

from memagent_server.schemas.base import (
    AlertState,
    DeviceId,
    JsonObject,
    NextCursor,
    NotificationState,
    Ratio,
    RunId,
    Schema,
    Step,
    Timestamp,
)
from memagent_server.settings import Severity

NotifyFrom = Literal["notice", "warning", "critical", "never"]


class Transition(Schema):
    """A change of an alert's state or severity."""

    at: Timestamp
    step: Step
    from_state: AlertState
    to_state: AlertState
    severity: Severity
    reason: str


class Delivery(Schema):
    """A notification of an alert on one channel."""

    channel: str
    state: NotificationState
    attempts: int
    sent_at: Timestamp | None
    last_error: str | None


class IncidentSummary(Schema):
    """Alerts of one launch with the same rule and cause, over all ranks, and people's response."""

    id: int
    run_id: RunId
    rule: str
    cause: str | None
    state: AlertState
    severity: Severity
    opened_at: Timestamp
    updated_at: Timestamp
    closed_at: Timestamp | None
    acked_at: Timestamp | None
    acked_by: str | None
    snoozed_until: Timestamp | None
    false_alarm_at: Timestamp | None
    note: str | None


class Alert(Schema):
    """One rule about one stream of a run. `data` is the input of the newest decision."""

    id: int
    run_id: RunId
    run_name: str
    project: str
    rank: int | None
    device: DeviceId | None
    rule: str
    severity: Severity
    state: AlertState
    opened_at: Timestamp
    updated_at: Timestamp
    closed_at: Timestamp | None
    first_step: Step
    step: Step
    summary: str
    data: JsonObject
    incident_id: int | None
    incident: IncidentSummary | None
    transitions: list[Transition]
    notifications: list[Delivery]


class AlertPage(Schema):
    """A page of alerts, the newest first."""

    alerts: list[Alert]
    next_cursor: NextCursor


class Incident(IncidentSummary):
    """An incident with its alerts, in the order in which they opened."""

    alerts: list[Alert]


class IncidentPage(Schema):
    """A page of incidents, the newest first."""

    incidents: list[Incident]
    next_cursor: NextCursor


class Notification(Schema):
    """A message to a channel about a transition of an alert."""

    id: int
    channel: str
    state: NotificationState
    attempts: int
    created_at: Timestamp
    next_attempt_at: Timestamp | None
    held_until: Timestamp | None
    sent_at: Timestamp | None
    last_error: str | None
    incident_id: int | None
    alert_id: int
    run_id: RunId
    run_name: str
    rule: str
    severity: Severity
    to_state: AlertState


class NotificationPage(Schema):
    """A page of notifications, the newest first."""

    notifications: list[Notification]
    next_cursor: NextCursor


class RetriedNotification(Schema):
    id: int
    state: Literal["waiting"]


class Channel(Schema):
    channel: str
    is_set_up: bool
    least_severity: Severity


class Channels(Schema):
    channels: list[Channel]


class TestDelivery(Schema):
    """The channel's response to a test message."""

    channel: str
    ok: bool
    answer: str


class Threshold(Schema):
    value: float
    default: float
    least: float
    most: float
    unit: str
    about: str


class Rule(Schema):
    """A project's setting of a rule. `tells` is the lowest severity that sends notifications."""

    about: str
    is_on: bool
    tells: NotifyFrom
    is_default: bool
    thresholds: dict[str, Threshold]


class Rules(Schema):
    project: str
    rules: dict[str, Rule]


class ColumnRule(Schema):
    """A rule about a column or scalar. `project` is `*` for a rule of every project."""

    name: str
    project: str
    column: str
    test: str
    value: float
    for_s: float
    level: str
    updated_at: Timestamp
    updated_by: str | None


class ColumnRules(Schema):
    project: str
    rules: list[ColumnRule]


class Score(Schema):
    """Accuracy of warnings; a ratio is null if its denominator is 0."""

    warnings: int
    came_true: int
    averted: int
    finished: int
    lost_contact: int
    open: int
    called_false: int
    unforeseen: int
    true_ratio: Ratio | None
    foreseen_ratio: Ratio | None
    lead_steps: float | None
    lead_s: float | None


class NamedScore(Score):
    name: str


class ThresholdCost(Schema):
    """Past cost of a threshold of the probability; `cost` is in lost runs."""

    threshold: Ratio
    is_own: bool
    pages: int
    needless: int
    missed: int
    cost: float


class Scoreboard(Schema):
    days: int
    project: str | None
    total: Score
    ended_runs: int
    costs: list[ThresholdCost]
    by_project: list[NamedScore]
    by_cause: list[NamedScore]
