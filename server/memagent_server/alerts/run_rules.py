"""Rules about a whole run: one rank against the others, and ranks that have stalled."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from memagent_server.alerts.result_writer import ResultWriter
from memagent_server.alerts.rule_config import Policies, Policy, RuleConfig
from memagent_server.alerts.rule_input import RuleInput
from memagent_server.alerts.sharding import LostShards, Share
from memagent_server.alerts.state import RuleState
from memagent_server.alerts.stream_state import (
    AlertChange,
    StreamEvaluation,
    alert_change,
    evaluate_rule,
    is_change,
)
from memagent_server.settings import SEVERITIES, Severity
from memagent_server.store.alerts import open_alerts_by_run
from memagent_server.store.engine import Database
from memagent_server.store.errors import problem_of
from memagent_server.store.evaluation import RunningRun, StreamHead
from memagent_server.store.incidents import ended_snoozes
from memagent_server.store.models import AlertRow
from memagent_server.store.ranks import alive_ranks

log = logging.getLogger(__name__)

RUN_RULES_EVERY_S = 5.0
ALIVE_FOR_S = 45.0
"""A process is alive this long after its last message: agents send one at least every 15 s."""

StreamPair = tuple[StreamHead, StreamEvaluation | None]


@dataclass(frozen=True)
class RuleCheck:
    """A rule to evaluate, the stream that its alert is about, and its input."""

    config: RuleConfig
    stream_id: int
    is_per_stream: bool
    """True if each stream has an alert, False if the run has one."""
    rule_input: RuleInput

    @property
    def key(self) -> tuple[str, int]:
        return self.config.rule.name, self.stream_id if self.is_per_stream else 0


@dataclass
class RunEvaluation:
    """Alert states of a run, by rule and stream."""

    states: dict[tuple[str, int], RuleState] = field(default_factory=dict)

    def has_states_for(self, checks: Iterable[RuleCheck]) -> bool:
        """Return False if a state is unknown: it depends on the store's open alerts."""
        return all(check.key in self.states for check in checks)


class RunRules:
    """Rules about whole runs, evaluated every few seconds, with or without new samples."""

    def __init__(self, database: Database, share: Share, writer: ResultWriter) -> None:
        self._database = database
        self._share = share
        self._writer = writer
        self._evaluations: dict[str, RunEvaluation] = {}
        self._evaluated_at = float("-inf")

    def turn(
        self,
        runs: Mapping[str, RunningRun],
        streams: Iterable[StreamHead],
        stream_evaluations: Mapping[int, StreamEvaluation],
        policies: Policies,
        now: float,
    ) -> None:
        """Evaluate the rules if they are due, and remind of incidents whose snooze is over."""
        # a negative age means that the wall clock was set back: evaluate
        if 0.0 <= now - self._evaluated_at < RUN_RULES_EVERY_S:
            return
        self._evaluated_at = now
        with self._database.read() as session:
            alive = alive_ranks(session, now - ALIVE_FOR_S)
            snoozes_over = [
                incident.id
                for incident in ended_snoozes(session, now)
                if self._share.holds(incident.run_id)
            ]
        by_run: dict[str, list[StreamPair]] = {}
        for stream in streams:
            by_run.setdefault(stream.run_id, []).append((stream, stream_evaluations.get(stream.id)))
        checks = {}
        for run_id, pairs in by_run.items():
            policy = policies.of(runs[run_id].project)
            checks[run_id] = list(run_rule_inputs(pairs, alive.get(run_id, ()), policy, now))
        self._evaluate(checks, now)
        for incident_id in snoozes_over:
            with isolated(f"incident {incident_id}"):
                self._writer.remind(incident_id, now)

    def _evaluate(self, checks: Mapping[str, Collection[RuleCheck]], now: float) -> None:
        """Evaluate the checks of each run, and write the alerts that changed."""
        unknown = []
        for run_id, run_checks in checks.items():
            evaluation = self._evaluations.setdefault(run_id, RunEvaluation())
            if not evaluation.has_states_for(run_checks):
                unknown.append(run_id)
        with self._database.read() as session:
            stored = open_alerts_by_run(session, unknown)
        for run_id, run_checks in checks.items():
            changes = evaluate_run_rules(
                self._evaluations[run_id], run_checks, stored.get(run_id, ()), now
            )
            if changes:
                with isolated(f"run {run_id}"):
                    self._writer.write_changes(run_id, changes, now)

    def forget_other_runs(self, runs: Collection[str]) -> None:
        """Drop the state of runs that have ended or belong to another worker."""
        for run_id in [run_id for run_id in self._evaluations if run_id not in runs]:
            del self._evaluations[run_id]


def run_rule_inputs(
    streams: Collection[StreamPair], alive: Collection[int], policy: Policy, now: float
) -> Iterator[RuleCheck]:
    """Yield each rule about a whole run with its input."""
    fullest_streams = _fullest_of_ranks(streams)
    peaks = peaks_by_rank(fullest_streams)
    if len(peaks.peak_by_rank) > 1:
        fullest = max(fullest_streams, key=lambda pair: pair[0].peak_bytes or 0)[0]
        yield RuleCheck(policy["rank_imbalance"], fullest.id, False, peaks)
    for stream, evaluation in fullest_streams:
        # a rank that is not alive has lost contact, which is another alert
        if evaluation is None or evaluation.arrival.received_at is None or stream.rank not in alive:
            continue
        rule_input = RuleInput(
            step=stream.last_step or 0,
            silent_s=now - evaluation.arrival.received_at,
            step_s=evaluation.arrival.step_s,
        )
        yield RuleCheck(policy["stalled"], stream.id, True, rule_input)


def evaluate_run_rules(
    evaluation: RunEvaluation,
    checks: Iterable[RuleCheck],
    open_alerts: Collection[AlertRow],
    now: float,
) -> list[tuple[int, AlertChange]]:
    """Return (stream, change) for every alert that changed; `open_alerts` are the store's."""
    changes = []
    for check in checks:
        before = evaluation.states.get(check.key) or _stored_state(open_alerts, check)
        after, result = evaluate_rule(check.config, before, check.rule_input, now)
        evaluation.states[check.key] = after
        if is_change(before, after):
            step = check.rule_input.step
            changes.append((check.stream_id, alert_change(check.config, after, result, step)))
    return changes


def peaks_by_rank(streams: Collection[StreamPair]) -> RuleInput:
    """Return the input of rank_imbalance, from ranks whose stream is a device with a peak."""
    peaks = {
        stream.rank: stream.peak_bytes
        for stream, _ in streams
        if stream.kind != "host" and stream.peak_bytes
    }
    limits = [stream.limit_bytes for stream, _ in streams if stream.limit_bytes]
    step = min((stream.last_step or 0 for stream, _ in streams), default=0)
    return RuleInput(step=step, peak_by_rank=peaks, limit_bytes=max(limits, default=None))


def _fullest_of_ranks(streams: Collection[StreamPair]) -> list[StreamPair]:
    """Return each rank's stream with the highest peak; a host only if there is no other."""
    fullest: dict[int, StreamPair] = {}
    for pair in streams:
        before = fullest.get(pair[0].rank)
        if before is None or _fullness(pair[0]) > _fullness(before[0]):
            fullest[pair[0].rank] = pair
    return list(fullest.values())


def _fullness(stream: StreamHead) -> tuple[bool, int]:
    return stream.kind != "host", stream.peak_bytes or 0


def _stored_state(open_alerts: Collection[AlertRow], check: RuleCheck) -> RuleState:
    """Return the state of the newest open alert of a rule, and of the stream if it has one."""
    rule = check.config.rule.name
    candidates = [
        alert
        for alert in open_alerts
        if alert.rule == rule and (not check.is_per_stream or alert.stream_id == check.stream_id)
    ]
    alert = max(candidates, key=lambda alert: alert.id, default=None)
    if alert is None:
        return RuleState()
    severity: Severity = next((name for name in SEVERITIES if name == alert.severity), "note")
    return RuleState(
        "firing" if alert.state == "firing" else "pending", severity, 0, alert.opened_at
    )


@contextmanager
def isolated(subject: str) -> Iterator[None]:
    """Log an error instead of raising it, so that one run doesn't stop the others.

    Errors of the database are raised: they stop every run.
    """
    try:
        yield
    except LostShards:
        pass
    except Exception as error:
        if problem_of(error) is not None:
            raise
        log.exception("%s could not be evaluated", subject)
