"""Evaluation state of one stream between two turns of the worker.

It holds the stream's forecaster, its alert states, and the position up to which it has read.

1. An evaluation resumes where the last one stopped: with the alert states of the stream's mark, and
   a forecaster that was fed the past (`store.history`).
2. Each new sample yields a forecast. Rules scheduled per sample decide on forecasts that page, and
   on every forecast while their alert is open.
3. After all new samples, rules scheduled per turn decide once, on the newest readings. The summary
   of an alert that fires follows them.
4. If samples arrive late and much faster than they were taken, the stream is catching up: no alert
   starts to fire (`state`, 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any

import msgspec

from memagent.forecast import Forecast, Forecaster, Hints, feed_columns, later, select_columns
from memagent.forecast.replay_columns import READINGS
from memagent.forecast.state import dump_state, load_state
from memagent.wire.messages import FRACTION_LIMIT
from memagent_server.alerts.arrival import ArrivalRate
from memagent_server.alerts.memory_rules import OOM_FORECAST
from memagent_server.alerts.rule_config import Policy, RuleConfig
from memagent_server.alerts.rule_definition import Rule
from memagent_server.alerts.rule_input import CALM, RuleInput, RuleResult
from memagent_server.alerts.state import RuleState, next_state
from memagent_server.store.chunks import Stats
from memagent_server.store.engine import Session
from memagent_server.store.evaluation import StreamHead, StreamMark
from memagent_server.store.history import StoredChunk, newest_from, read_summaries
from memagent_server.store.streams import used_bytes

MATERIAL_READING_CHANGE = 0.01
"""Share by which the reading of an open alert must move before its summary is written again."""
SWITCHED_OFF = "the rule was switched off"
_SUMMARY_COLUMNS = ("step", *READINGS)
_LOWEST = ("step", "time_s", "allocated_bytes", "host_rss_bytes", "inactive_split_bytes")


@dataclass(frozen=True)
class AlertChange:
    """Transition of a rule's alert to `state`, caused by `result` at `step`.

    Without a transition, the state is the alert's own, and only its summary changes.
    """

    rule: str
    state: RuleState
    result: RuleResult
    step: int
    reason: str = ""
    cause: str | None = None
    """Cause of the alert's incident, for a rule with several alerts a stream."""


@dataclass
class StreamEvaluation:
    """Evaluation of one stream; `mark` is the sample up to which the store has its decisions."""

    run_id: str
    forecaster: Forecaster
    is_secondary_host: bool = False
    """True for the host of a rank that trains on GPUs."""
    run_born_at: float = 0.0
    predicted_peak_bytes: int | None = None
    read_seq: int = -1
    chunks: int = 0
    mark: int = -1
    open_at_mark: dict[str, tuple[str, str]] = field(default_factory=dict)
    """State and severity of the alerts that were open at the mark, by rule."""
    states: dict[str, RuleState] = field(default_factory=dict)
    arrival: ArrivalRate = field(default_factory=ArrivalRate)
    readings: dict[str, float] = field(default_factory=dict)
    """Reading that the summary of a rule's alert was last written with."""
    newest: Forecast | None = None
    reported: Forecast | None = None
    """The forecast that was last written to the store."""
    saved_seq: int = -1
    """The last sample in the stored state of the forecaster."""

    def belongs_to(self, stream: StreamHead) -> bool:
        """Return False for a new stream with a reused id: SQLite reuses the ids of deleted rows."""
        return (self.run_id, self.run_born_at) == (stream.run_id, stream.run_born_at)

    def state_of(self, rule: str) -> RuleState:
        return self.states.get(rule, RuleState())

    def has_open_alert(self, rules: Iterable[str]) -> bool:
        return any(self.state_of(rule).is_open for rule in rules)

    def take_reading(self, rule: Rule, state: RuleState, result: RuleResult) -> bool:
        """Keep a firing alert's reading if it differs materially, and return whether it does."""
        value, previous = result.data.get(rule.reading), self.readings.get(rule.name)
        if state.state != "firing" or value is None:
            return False
        if previous is not None and abs(value - previous) <= MATERIAL_READING_CHANGE * previous:
            return False
        self.readings[rule.name] = value
        return True

    def load_mark(self, seq: int, states: Mapping[str, Any]) -> None:
        """Adopt the decisions of another worker, or those from before a restart."""
        self.states = {rule: RuleState(**values) for rule, values in states.items()}
        self.set_mark(seq)

    def set_mark(self, seq: int) -> None:
        """Note that the store has all decisions up to the sample `seq`."""
        self.mark = seq
        self.open_at_mark = open_alerts(self.stored_states())

    def stored_states(self) -> dict[str, Any]:
        """Return the states that differ from the initial one, for JSON."""
        return {rule: asdict(state) for rule, state in self.states.items() if state != RuleState()}


def open_alerts(states: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return {rule: (state, severity)} of the open alerts among the states of a mark."""
    return {
        rule: (values["state"], values["severity"])
        for rule, values in states.items()
        if RuleState(**values).is_open
    }


def dump_evaluation(evaluation: StreamEvaluation) -> bytes:
    """Serialize an evaluation, except for its mark, for `restore_evaluation`."""
    state = dump_state(evaluation.forecaster)
    return msgspec.msgpack.encode((asdict(evaluation.arrival), state))


def restore_evaluation(
    stream: StreamHead,
    limit_bytes: int,
    mark: StreamMark,
    seq: int,
    state: bytes,
    *,
    is_secondary_host: bool,
) -> StreamEvaluation | None:
    """Resume another worker's evaluation; None if the past must be read again."""
    arrival, forecaster_state = msgspec.msgpack.decode(state)
    forecaster = load_state(forecaster_state)
    if forecaster is None or forecaster.limit_bytes != limit_bytes:
        return None
    evaluation = StreamEvaluation(
        stream.run_id,
        forecaster,
        is_secondary_host,
        run_born_at=stream.run_born_at,
        arrival=ArrivalRate(**arrival),
    )
    evaluation.read_seq = seq
    evaluation.saved_seq = seq
    evaluation.newest = forecaster.newest
    evaluation.load_mark(mark.seq, mark.states)
    return evaluation


def start_evaluation(
    session: Session,
    stream: StreamHead,
    limit_bytes: int,
    hints: Hints,
    mark: StreamMark | None,
    *,
    is_secondary_host: bool,
) -> StreamEvaluation:
    """Return an evaluation whose forecaster has been fed summaries of the past."""
    forecaster = hints.forecaster(
        stream.device,
        limit_bytes,
        device_bytes=inf if stream.limit_source == FRACTION_LIMIT else None,
        is_secondary_host=is_secondary_host,
        gc_probe=later,
    )
    evaluation = StreamEvaluation(
        stream.run_id, forecaster, is_secondary_host, run_born_at=stream.run_born_at
    )
    if mark is not None:
        evaluation.load_mark(mark.seq, mark.states)
    first = newest_from(stream)
    for stats in read_summaries(session, stream, first, _SUMMARY_COLUMNS):
        columns = select_columns(_summary_row(stats), is_secondary_host=is_secondary_host)
        for forecast in feed_columns(forecaster, columns):
            evaluation.newest = forecast
    evaluation.read_seq = first - 1
    return evaluation


def evaluate_chunks(
    stream: StreamHead,
    evaluation: StreamEvaluation,
    chunks: Iterable[StoredChunk],
    latest: Mapping[str, Any],
    hints: Hints,
    policy: Policy,
    now: float,
) -> list[AlertChange]:
    """Evaluate new chunks and return the changes of alerts in order.

    `latest` holds the newest reading of every column.
    """
    changes: list[AlertChange] = []
    is_secondary_host = evaluation.is_secondary_host
    hints.apply_to(evaluation.forecaster, stream.device, is_secondary_host=is_secondary_host)
    evaluation.forecaster.page_cost = policy[OOM_FORECAST.name].thresholds["page_cost"]
    evaluation.predicted_peak_bytes = hints.predicted_peak_bytes.get(stream.device)
    per_sample = _scheduled(policy, "sample")
    for chunk in chunks:
        changes += _evaluate_chunk(stream, evaluation, chunk, per_sample, now)
    evaluation.chunks = stream.chunks
    changes = _with_newest_forecast(changes, evaluation, policy)
    if evaluation.newest is not None and evaluation.read_seq > evaluation.mark:
        sampled_at = evaluation.arrival.time_s
        rule_input = _rule_input(stream, evaluation, latest)
        at = now if sampled_at is None else sampled_at
        changes += _apply_rules(evaluation, _scheduled(policy, "turn"), rule_input, at)
    return changes


def _scheduled(policy: Policy, schedule: str) -> Policy:
    return {name: config for name, config in policy.items() if config.rule.schedule == schedule}


def _evaluate_chunk(
    stream: StreamHead, evaluation: StreamEvaluation, chunk: StoredChunk, policy: Policy, now: float
) -> list[AlertChange]:
    """Evaluate one chunk row by row.

    Rules are skipped for rows that can't change anything: the forecast is ok, and no alert is open
    (see `rules.Schedule`).
    """
    evaluation.arrival.update(chunk)
    evaluation.read_seq = chunk.seq
    changes: list[AlertChange] = []
    times = chunk.columns.get("time_s")
    has_open_alert = evaluation.has_open_alert(policy)
    last_decided_row = evaluation.mark - chunk.first_seq
    columns = select_columns(chunk.columns, is_secondary_host=evaluation.is_secondary_host)
    for row, forecast in enumerate(feed_columns(evaluation.forecaster, columns)):
        evaluation.newest = forecast
        if row > last_decided_row and (has_open_alert or forecast.level != "ok"):
            sampled_at = times[row] if times else None
            rule_input = RuleInput(step=forecast.step, kind=stream.kind, forecast=forecast)
            at = now if sampled_at is None else float(sampled_at)
            changes += _apply_rules(evaluation, policy, rule_input, at)
            has_open_alert = evaluation.has_open_alert(policy)
    return changes


def _with_newest_forecast(
    changes: list[AlertChange], evaluation: StreamEvaluation, policy: Policy
) -> list[AlertChange]:
    """Report an alert that began to fire some samples ago with the newest forecast."""
    newest = evaluation.newest
    if not changes or newest is None or changes[-1].state.state != "firing":
        return changes
    last, config = changes[-1], policy[changes[-1].rule]
    rule_input = RuleInput(step=newest.step, forecast=newest)
    result = config.rule.decide(rule_input, config.thresholds, True)
    if config.severity(result.level) is None:
        return changes
    return [*changes[:-1], replace(last, result=result, step=newest.step)]


def _apply_rules(
    evaluation: StreamEvaluation, policy: Policy, rule_input: RuleInput, at: float
) -> list[AlertChange]:
    """Evaluate the rules, update their states, and return the changes."""
    changes = []
    for name, config in policy.items():
        before = evaluation.state_of(name)
        if not (config.is_on or before.is_open):
            continue
        after, result = evaluate_rule(
            config, before, rule_input, at, may_fire=not evaluation.arrival.is_late
        )
        evaluation.states[name] = after
        is_new_reading = evaluation.take_reading(config.rule, after, result)
        if is_new_reading or is_change(before, after):
            changes.append(alert_change(config, after, result, rule_input.step))
    return changes


def is_change(before: RuleState, after: RuleState) -> bool:
    """Return True for a change of state or severity of an alert that is, or was, open."""
    is_different = (after.state, after.severity) != (before.state, before.severity)
    return is_different and (before.is_open or after.is_open)


def alert_change(
    config: RuleConfig, state: RuleState, result: RuleResult, step: int
) -> AlertChange:
    reason = "" if config.is_on else SWITCHED_OFF
    return AlertChange(config.rule.name, state, result, step, reason)


def evaluate_rule(
    config: RuleConfig,
    before: RuleState,
    rule_input: RuleInput,
    at: float,
    *,
    may_fire: bool = True,
) -> tuple[RuleState, RuleResult]:
    """Return a rule's next state and its result. A rule that was switched off closes at once."""
    if not config.is_on:
        if before.state == "firing":
            return RuleState("averted", before.severity, 0, at), CALM
        return RuleState(), CALM
    result = config.rule.decide(rule_input, config.thresholds, before.state == "firing")
    severity = config.severity(result.level) or "ok"
    after = next_state(before, severity, at, config.rule.hysteresis, may_fire=may_fire)
    return after, result


def _rule_input(
    stream: StreamHead, evaluation: StreamEvaluation, latest: Mapping[str, Any]
) -> RuleInput:
    used = used_bytes(latest)
    if stream.limit_source == "cgroup":
        used = _positive_int(latest.get("cgroup_used_bytes")) or used
    return RuleInput(
        step=stream.last_step or 0,
        kind=stream.kind,
        used_bytes=used,
        peak_bytes=_positive_int(latest.get("peak_allocated_bytes")),
        launch_peak_bytes=stream.peak_bytes,
        reserved_bytes=_positive_int(latest.get("reserved_bytes")),
        inactive_split_bytes=_positive_int(latest.get("inactive_split_bytes")),
        limit_bytes=stream.limit_bytes,
        limit_source=stream.limit_source,
        predicted_peak_bytes=evaluation.predicted_peak_bytes,
        forecast=evaluation.newest,
    )


def _summary_row(stats: Stats) -> dict[str, list[Any]]:
    """Return one row for a chunk: the lowest floors, the highest peaks, the last of all the rest.

    The row carries the chunk's first step, because a growing floor is lowest there: the trend stays
    straight. Its phase isn't a training phase: batch sizes come from real steps only.
    """
    row: dict[str, list[Any]] = {}
    for name, (lowest, highest, last) in stats.items():
        row[name] = [lowest if name in _LOWEST else highest if "peak" in name else last]
    return {**row, "phase": ["past"], "input_size": [None]}


def _positive_int(value: Any) -> int | None:
    """Return a positive number as an integer, else None: configurations may hold anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 < value < 2**62 else None
