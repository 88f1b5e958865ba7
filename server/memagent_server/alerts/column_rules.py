"""Evaluation of projects' own rules about columns and scalars of running runs.

1. Each rule has a monitor and an alert state for each current stream with its column. Alerts of one
   rule and launch are one incident.
2. Every few seconds the new samples are read, only these columns of them. A server without such
   rules reads nothing.
3. Samples that come late build up a monitor's past, and decide nothing. The same holds for what a
   run had sent before this worker took it over.
4. A changed rule starts again from the next sample. The alert of one that was removed is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from memagent_server.alerts.arrival import MAX_DELAY_S
from memagent_server.alerts.column_monitor import ColumnCheck, ColumnFinding, ColumnMonitor
from memagent_server.alerts.event_rules import COLUMN
from memagent_server.alerts.result_writer import ResultWriter
from memagent_server.alerts.rule_config import Policies, RuleConfig
from memagent_server.alerts.rule_input import CALM, RuleInput
from memagent_server.alerts.run_rules import isolated
from memagent_server.alerts.state import RuleState, next_state
from memagent_server.alerts.stream_state import SWITCHED_OFF, AlertChange, is_change
from memagent_server.settings import SEVERITIES, Severity
from memagent_server.store.alerts import open_alerts_of_rule
from memagent_server.store.engine import Database, Session
from memagent_server.store.evaluation import (
    PendingChunk,
    RunningRun,
    StreamHead,
    current_heads,
    read_pending,
)
from memagent_server.store.models import AlertRow, ColumnRuleRow
from memagent_server.store.packing import unseal
from memagent_server.store.rules import EVERY_PROJECT, all_column_rules

EVERY_S = 5.0
BACKLOG = 2_000
"""Samples before the newest that a new monitor gets at most."""
TAKEN_OVER_S = 60.0
"""A run that is older when this worker first sees it has had another worker."""
REMOVED = "the rule was removed or changed"

RulesByName = Mapping[str, ColumnCheck]
"""A project's rules by name."""
StreamChange = tuple[int, AlertChange]


@dataclass
class ColumnEvaluation:
    """Evaluation of one stream: what was read, and the rules' monitors and alert states."""

    run_born_at: float
    read_seq: int
    silent_until: float
    chunks: int = 0
    monitors: dict[str, ColumnMonitor] = field(default_factory=dict)
    states: dict[str, RuleState] = field(default_factory=dict)

    def adopt(self, rules: RulesByName, step: int, now: float) -> list[AlertChange]:
        """Drop the monitors of rules that were removed or changed, and close their alerts (4)."""
        known = set(self.monitors) | set(self.states)
        outdated = [
            name
            for name in sorted(known)
            if name not in rules
            or (name in self.monitors and self.monitors[name].rule != rules[name])
        ]
        changes = []
        for name in outdated:
            self.monitors.pop(name, None)
            before = self.states.pop(name, RuleState())
            if before.is_open:
                changes.append(_closing_change(name, before, step, now, REMOVED))
        for name, rule in rules.items():
            self.monitors.setdefault(name, ColumnMonitor(rule))
        return changes


class ColumnRuleEvaluator:
    """The rules of one worker's runs."""

    def __init__(self, database: Database, writer: ResultWriter) -> None:
        self._database = database
        self._writer = writer
        self._streams: dict[int, ColumnEvaluation] = {}
        self._evaluated_at = float("-inf")

    def turn(self, runs: Mapping[str, RunningRun], policies: Policies, now: float) -> None:
        """Evaluate new samples of `runs`, if it's time."""
        # a negative age means that the wall clock was set back
        if 0.0 <= now - self._evaluated_at < EVERY_S:
            return
        self._evaluated_at = now
        with self._database.read() as session:
            rules = all_column_rules(session)
            # most servers have no such rules: then a turn costs one query of an empty table
            if not rules and not self._streams:
                return
            of_run = {run_id: rules_of(rules, run.project) for run_id, run in runs.items()}
            heads = [head for head in current_heads(session) if head.run_id in of_run]
            self._enter(session, heads, of_run, now)
            chunks = self._read(session, heads, of_run)
        for run_id, of_heads in groupby(heads, key=lambda head: head.run_id):
            changes: list[StreamChange] = []
            with isolated(f"run {run_id}"):
                config = policies.of(runs[run_id].project)[COLUMN.name]
                for head in of_heads:
                    if head.id in self._streams:
                        stream = self._streams[head.id]
                        new_changes = evaluate_stream(
                            stream, head, chunks.get(head.id, ()), of_run[run_id], config, now
                        )
                        changes += [(head.id, change) for change in new_changes]
                if changes:
                    self._writer.write_changes(run_id, changes, now)

    def _enter(
        self,
        session: Session,
        heads: Sequence[StreamHead],
        of_run: Mapping[str, RulesByName],
        now: float,
    ) -> None:
        """Start the evaluation of new streams, with the states of the store's open alerts."""
        # SQLite reuses the ids of deleted streams: the run's birth distinguishes them
        ids = {head.id: head.run_born_at for head in heads}
        for stream_id in list(self._streams):
            if ids.get(stream_id) != self._streams[stream_id].run_born_at:
                del self._streams[stream_id]
        new = [head for head in heads if head.id not in self._streams and of_run[head.run_id]]
        if not new:
            return
        stored = open_alerts_of_rule(session, COLUMN.name)
        for head in new:
            is_taken_over = now - head.run_born_at > TAKEN_OVER_S
            stream = ColumnEvaluation(
                head.run_born_at,
                read_seq=max(-1, head.samples - 1 - BACKLOG),
                silent_until=now if is_taken_over else 0.0,
            )
            for alert in stored:
                if (alert.run_id, alert.stream_id) == (head.run_id, head.id):
                    stream.states[str(alert.data.get("name"))] = _stored_state(alert)
            self._streams[head.id] = stream

    def _read(
        self, session: Session, heads: Sequence[StreamHead], of_run: Mapping[str, RulesByName]
    ) -> dict[int, list[PendingChunk]]:
        """Return the new chunks of each stream that has any."""
        positions = {
            head.id: self._streams[head.id].read_seq
            for head in heads
            if head.id in self._streams
            and of_run[head.run_id]
            and self._streams[head.id].chunks != head.chunks
        }
        by_stream: dict[int, list[PendingChunk]] = {}
        if positions:
            for chunk in read_pending(session, positions):
                by_stream.setdefault(chunk.stream_id, []).append(chunk)
        return by_stream


def rules_of(rows: Iterable[ColumnRuleRow], project: str) -> RulesByName:
    """Return a project's rules: its own, and those of every project with other names."""
    own = [row for row in rows if row.project in (EVERY_PROJECT, project)]
    own.sort(key=lambda row: row.project != EVERY_PROJECT)
    return {
        row.name: ColumnCheck(row.name, row.column, row.test, row.value, row.for_s, row.level)
        for row in own
    }


def evaluate_stream(
    stream: ColumnEvaluation,
    head: StreamHead,
    chunks: Collection[PendingChunk],
    rules: RulesByName,
    config: RuleConfig,
    now: float,
) -> list[AlertChange]:
    """Evaluate the new chunks of a stream, and return the changes of alerts in order."""
    changes = stream.adopt(rules if config.is_on else {}, head.last_step or 0, now)
    if not config.is_on:
        changes = [_with_reason(change, SWITCHED_OFF) for change in changes]
    wanted = {"step", "time_s", *(rule.column for rule in rules.values())}
    for chunk in chunks:
        stream.read_seq = chunk.seq  # before a damaged chunk raises: the next turn goes on after it
        columns = unseal(chunk.packed, only=wanted)
        steps, times = columns["step"], columns.get("time_s")
        is_old = chunk.received_at <= stream.silent_until
        for monitor in stream.monitors.values():
            values = columns.get(monitor.rule.column)
            if values is None:
                continue
            for row in range(chunk.evaluated_rows, len(steps)):
                step, value = int(steps[row] or 0), values[row]
                sampled_at = times[row] if times else None
                at = now if sampled_at is None else float(sampled_at)
                finding = monitor.update(step, at, None if value is None else float(value))
                if value is not None and not is_old and chunk.received_at - at <= MAX_DELAY_S:
                    changes += _decide(stream, monitor.rule, finding, config, step, at)
    stream.chunks = head.chunks
    return changes


def _decide(
    stream: ColumnEvaluation,
    rule: ColumnCheck,
    finding: ColumnFinding | None,
    config: RuleConfig,
    step: int,
    at: float,
) -> list[AlertChange]:
    before = stream.states.get(rule.name, RuleState())
    result = config.rule.decide(RuleInput(step=step, column=finding), config.thresholds, False)
    severity = "note" if result.level == "note" else config.severity(result.level) or "ok"
    after = next_state(before, severity, at, config.rule.hysteresis)
    stream.states[rule.name] = after
    if not is_change(before, after):
        return []
    return [AlertChange(COLUMN.name, after, result, step, cause=rule.name)]


def _closing_change(
    name: str, before: RuleState, step: int, now: float, reason: str
) -> AlertChange:
    state = RuleState("averted", before.severity, 0, now)
    if before.state != "firing":
        state = RuleState()
    return AlertChange(COLUMN.name, state, CALM, step, reason, cause=name)


def _with_reason(change: AlertChange, reason: str) -> AlertChange:
    return AlertChange(change.rule, change.state, change.result, change.step, reason, change.cause)


def _stored_state(alert: AlertRow) -> RuleState:
    severity: Severity = next((name for name in SEVERITIES if name == alert.severity), "note")
    return RuleState(
        "firing" if alert.state == "firing" else "pending", severity, 0, alert.opened_at
    )
