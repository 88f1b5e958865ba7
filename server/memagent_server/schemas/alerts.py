"""Alerts, who was told of them, and the rules that make them."""

from typing import Literal

from typing_extensions import Required, TypedDict

from memagent_server.schemas.common import (
    AlertState,
    DeviceId,
    JsonObject,
    NextCursor,
    NotificationState,
    Ratio,
    RunId,
    Severity,
    Step,
    When,
)
from memagent_server.schemas.runs import EventFacts, RunSummary, StreamFacts

Tells = Literal["warning", "critical", "never"]


class IncidentFacts(TypedDict):
    """What folds the ranks of one launch with one rule and cause, and what people said of it."""

    id: int
    run_id: RunId
    rule: str
    cause: str | None
    state: AlertState
    severity: Severity
    opened_at: When
    updated_at: When
    closed_at: When | None
    acked_at: When | None
    acked_by: str | None
    snoozed_until: When | None
    false_alarm_at: When | None
    note: str | None


class TransitionFacts(TypedDict):
    """A change of an alert."""

    at: When
    step: Step
    from_state: AlertState
    to_state: AlertState
    severity: Severity
    reason: str


class Delivery(TypedDict):
    """What became of telling one channel."""

    channel: str
    state: NotificationState
    attempts: int
    sent_at: When | None
    last_error: str | None


class AlertFacts(TypedDict, total=False):
    """One rule about one stream of a run, from pending to its end. `data` holds the facts of the newest decision."""

    id: Required[int]
    run_id: RunId
    run_name: str
    project: str
    rank: int | None
    device: DeviceId | None
    rule: str
    severity: Severity
    state: AlertState
    opened_at: When
    updated_at: When
    closed_at: When | None
    first_step: Step
    step: Step
    summary: str
    data: JsonObject
    incident_id: int | None
    incident: IncidentFacts | None
    transitions: list[TransitionFacts]
    notifications: list[Delivery]


class AlertPage(TypedDict):
    """A page of alerts, the newest first."""

    alerts: list[AlertFacts]
    next_cursor: NextCursor


class RunFacts(RunSummary, total=False):
    """All there is to know of a run without its samples: the newest 200 events, the newest 50 alerts."""

    config: JsonObject
    environment: JsonObject
    error: str | None
    dropped_samples: dict[str, int]
    streams: list[StreamFacts]
    events: list[EventFacts]
    alerts: list[AlertFacts]


class NotificationFacts(TypedDict, total=False):
    """A message to a channel about a change of an alert."""

    id: Required[int]
    channel: str
    state: NotificationState
    attempts: int
    created_at: When
    next_attempt_at: When | None
    sent_at: When | None
    last_error: str | None
    incident_id: int | None
    alert_id: int
    run_id: RunId
    run_name: str
    rule: str
    severity: Severity
    to_state: AlertState


class NotificationPage(TypedDict):
    """A page of notifications, the newest first."""

    notifications: list[NotificationFacts]
    next_cursor: NextCursor


class SentAgain(TypedDict):
    id: int
    state: Literal["waiting"]


class ChannelFacts(TypedDict):
    channel: str
    is_set_up: bool
    least_severity: Severity


class Channels(TypedDict):
    channels: list[ChannelFacts]


class TestDelivery(TypedDict):
    """What a channel made of a test message."""

    channel: str
    ok: bool
    answer: str


class ThresholdFacts(TypedDict):
    value: float
    default: float
    least: float
    most: float
    unit: str
    about: str


class RuleFacts(TypedDict):
    """How a project wants a rule. `tells` is the least severity that people are told of."""

    about: str
    is_on: bool
    tells: Tells
    is_default: bool
    thresholds: dict[str, ThresholdFacts]


class Rules(TypedDict):
    project: str
    rules: dict[str, RuleFacts]


class Score(TypedDict):
    """How good the warnings were; null where there is nothing to divide."""

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


class Scoreboard(TypedDict):
    days: int
    project: str | None
    total: Score
    by_project: list[NamedScore]
    by_cause: list[NamedScore]
