"""Alerts at the end of a launch, and notifications about deaths without a warning.

1. The end of the run closes its open alerts with the run's status.
2. A newer launch closes the open alerts of the older one with that one's status, or lost_contact if
   it has none.
3. A launch that ran out of memory or fell silent, without an alert that reports it, gets one that
   is already closed. That holds for each launch, and for each silence of a launch that came back.
4. A pending alert closes without a notification, except for oom: then it was right, if late.
5. Without an open alert, a death is that of an averted warning whose growth began before it and
   goes on at the end, if it filled the device that ran out of memory.
"""

from __future__ import annotations

from collections.abc import Collection

from memagent.forecast.overhead import MAX_UNUSABLE_RATIO
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rule_config import Policies, Policy
from memagent_server.alerts.rule_input import RuleInput
from memagent_server.alerts.state import RuleState, state_after_run
from memagent_server.store.alerts import averted_warning, open_alerts
from memagent_server.store.engine import Session
from memagent_server.store.events import oom_events
from memagent_server.store.forecasts import growing_since
from memagent_server.store.growth import GrowthSpan
from memagent_server.store.models import RankRow, RunRow, StreamRow
from memagent_server.store.streams import current_streams
from memagent_server.store.summaries import nearest_to_limit
from memagent_server.store.unreported import unreported_ends, was_warned

RECENT_S = 86_400.0
"""Age up to which runs are checked for unreported deaths in every turn."""
ALL_RUNS_EVERY_S = 3_600.0
_STATUS_TEXTS = {
    "completed": "completed",
    "stopped": "was stopped",
    "failed": "failed",
    "oom": "ran out of memory",
    "lost_contact": "fell silent",
}


def end_alerts(
    session: Session, run: RunRow, policy: Policy, channels: Collection[str], now: float
) -> None:
    """Close the alerts of ended launches of a run whose row is locked, and report its death."""
    incidents = IncidentTransaction(session, channels, now)
    for alert in open_alerts(session, run.id):
        key = (run.id, alert.stream_id)
        stream = session.get(StreamRow, key) if alert.stream_id is not None else None
        if stream is not None and not stream.is_current:
            status, step, reason = _end_of_older_launch(session, stream)
        elif run.status != "running":
            status, step, reason = run.status, run.step, _reason(run)
        else:
            continue
        before = RuleState("firing" if alert.state == "firing" else "pending")
        after = state_after_run(before, status, now)
        incidents.end(alert, after.state, step=step, reason=reason)
    incidents.flush()
    if run.status == "oom" and unreported_ends(session, run.id):
        _rate_averted(session, incidents, run)
        incidents.flush()
    if unreported_ends(session, run.id) and policy[run.status].is_on:
        _report_death(session, incidents, run, policy)
        incidents.flush()


class UnreportedDeaths:
    """Finds deaths without a notification: among recent runs each time, now and then among all."""

    def __init__(self) -> None:
        self._all_runs_at = float("-inf")

    def find(self, session: Session, policies: Policies, now: float) -> list[str]:
        """Return the ids of dead runs whose projects want to be notified."""
        # the wall clock may be set back: a negative age counts as due
        is_due = not 0.0 <= now - self._all_runs_at < ALL_RUNS_EVERY_S
        runs = unreported_ends(session, seen_after=None if is_due else now - RECENT_S)
        if is_due:
            self._all_runs_at = now
        return [run.id for run in runs if policies.of(run.project)[run.status].is_on]


def _end_of_older_launch(session: Session, stream: StreamRow) -> tuple[str, int, str]:
    """Return status, last step and reason for the launch that `stream` belonged to."""
    rank = session.get(RankRow, (stream.run_id, stream.rank, stream.attempt))
    step = stream.last_step or 0
    if rank is None or rank.status == "running":
        return "lost_contact", step, "a new launch of the run started; this one reported no end"
    return rank.status, step, _describe_end("this launch", rank.status, rank.error)


def _rate_averted(session: Session, incidents: IncidentTransaction, run: RunRow) -> None:
    """Close averted warnings again if the growth that they were about ended in the death (5)."""
    for stream in _full_streams(session, run):
        since = growing_since(session, run.id, stream.id)
        if since is None:
            continue
        alert = averted_warning(session, run.id, stream.id, since)
        if alert is not None and GrowthSpan(stream.id, since, run.step).went_on(session, run.id):
            incidents.end(alert, "oom", step=run.step, reason=_reason(run))


def _full_streams(session: Session, run: RunRow) -> list[StreamRow]:
    """Return the fullest device of each rank that ran out of memory, if it was full.

    Those are the ranks with an `oom` event, or all if none has one. Full is what is usual in
    messages of such errors: all but the share that can't be used.
    """
    streams = current_streams(session, [run.id])
    dead = {event.rank for event in oom_events(session, run.id)} or {item.rank for item in streams}
    fullest = [
        nearest_to_limit([item for item in streams if item.rank == rank]) for rank in sorted(dead)
    ]
    return [
        item
        for item in fullest
        if item is not None
        and item.limit_bytes
        and (item.peak_bytes or 0) >= (1 - MAX_UNUSABLE_RATIO) * item.limit_bytes
    ]


def _report_death(
    session: Session, incidents: IncidentTransaction, run: RunRow, policy: Policy
) -> None:
    streams = current_streams(session, [run.id])
    stream = streams[0] if streams else None
    rule_input = RuleInput(
        step=run.step,
        status=run.status,
        error=run.error,
        was_warned=was_warned(session, run.id),
        launch_peak_bytes=stream.peak_bytes if stream else None,
        limit_bytes=stream.limit_bytes if stream else None,
    )
    config = policy[run.status]
    result = config.rule.decide(rule_input, config.thresholds, False)
    alert = incidents.open(
        run.id,
        stream.id if stream else None,
        config.rule.name,
        severity=config.severity(result.level) or "note",
        step=run.step,
        data=result.data,
        cause=result.cause,
        reason=_reason(run),
    )
    incidents.end(alert, run.status, step=run.step, reason=_reason(run))


def _reason(run: RunRow) -> str:
    return _describe_end("the run", run.status, run.error)


def _describe_end(subject: str, status: str, error: str | None) -> str:
    text = f"{subject} {_STATUS_TEXTS.get(status, f'ended as {status}')}"
    return f"{text}: {error}" if error else text
