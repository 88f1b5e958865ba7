"""Alerts that scripts raise by `run.alert`.

1. A script's alert arrives as an event. The transaction that opens the alert also marks the event
   as done: a restarted worker, or a second one, sends no second notification.
2. Alerts of a run with one title are one incident, on all ranks. A repetition updates the open
   alert and its count, and notifies only if it's more severe.
3. An alert is over when the script hasn't repeated it for `quiet_s`, or with the run. That sends no
   notification.
4. A run has at most MAX_OPEN open alerts: further titles count as one, FURTHER_TITLE. The agent
   keeps to less, but any client may send events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

from memagent.units import format_duration
from memagent.wire.messages import MAX_ALERT_TEXT, MAX_ALERT_TITLE, AlertLevel
from memagent_server.alerts.event_rules import SCRIPT
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rule_config import Policies, RuleConfig
from memagent_server.alerts.rule_input import RuleInput, ScriptAlert
from memagent_server.alerts.run_rules import isolated
from memagent_server.alerts.sharding import Share
from memagent_server.alerts.stream_state import SWITCHED_OFF
from memagent_server.store.alerts import open_alerts_of_rule
from memagent_server.store.engine import Database, Session
from memagent_server.store.events import pending_events, runs_with_pending_events, take_events
from memagent_server.store.models import AlertRow, EventRow
from memagent_server.store.runs import lock_run, lock_runs

MAX_OPEN = 20
FURTHER_TITLE = "further alerts"
QUIET_EVERY_S = 30.0
"""Interval at which alerts that are over are looked for."""


class ScriptAlertWriter:
    """The alerts of scripts, for one worker; `channels` get the notifications."""

    def __init__(self, database: Database, channels: Collection[str], share: Share) -> None:
        self._database = database
        self._channels = tuple(channels)
        self._share = share
        self._looked_for_quiet_at = float("-inf")

    def turn(self, policies: Policies, now: float) -> bool:
        """Open the alerts of new events, and close those that are over; return whether any."""
        with self._database.read() as session:
            run_ids = set(runs_with_pending_events(session))
            # a negative age means that the wall clock was set back
            if not 0.0 <= now - self._looked_for_quiet_at < QUIET_EVERY_S:
                self._looked_for_quiet_at = now
                run_ids |= {
                    alert.run_id
                    for alert in open_alerts_of_rule(session, SCRIPT.name)
                    if now - alert.updated_at >= SCRIPT.thresholds[0].least
                }
        own_ids = [run_id for run_id in sorted(run_ids) if self._share.holds(run_id)]
        for run_id in own_ids:
            with isolated(f"run {run_id}"):
                self._write(run_id, policies, now)
        return bool(own_ids)

    def _write(self, run_id: str, policies: Policies, now: float) -> None:
        with self._database.write() as session:
            self._share.confirm(session, (run_id,))
            if run_id not in lock_runs(session, (run_id,)):
                return
            config = policies.of(lock_run(session, run_id).project)[SCRIPT.name]
            events = pending_events(session, run_id)
            incidents = IncidentTransaction(session, self._channels, now)
            if config.is_on:
                _apply(session, incidents, run_id, read_alerts(events), config)
            _close_quiet(session, incidents, run_id, config, now)
            take_events(session, run_id, [event.id for event in events])
            incidents.flush()


def read_alerts(events: Iterable[EventRow]) -> dict[str, tuple[int, ScriptAlert]]:
    """Return {title: (step, alert)}; of several with one title, the newest with the worst level."""
    by_title: dict[str, tuple[int, ScriptAlert]] = {}
    for event in events:
        alert = read_alert(event.data)
        if alert.title in by_title:
            before = by_title[alert.title][1]
            worst = max(before.level, alert.level, key=get_args(AlertLevel).index)
            alert = replace(alert, level=worst, count=before.count + alert.count)
        by_title[alert.title] = event.step, alert
    return by_title


def read_alert(data: Mapping[str, Any]) -> ScriptAlert:
    """Return the alert of an event, whatever its client sent."""
    title, text, level, count = (data.get(name) for name in ("title", "text", "level", "count"))
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 < count < 2**53
    return ScriptAlert(
        title=" ".join(str(title or "")[:MAX_ALERT_TITLE].split()) or "no title",
        text=text[:MAX_ALERT_TEXT] if isinstance(text, str) else "",
        level=str(level) if level in get_args(AlertLevel) else "warning",
        count=int(count) if is_count and count is not None else 1,
    )


def _apply(
    session: Session,
    incidents: IncidentTransaction,
    run_id: str,
    alerts: Mapping[str, tuple[int, ScriptAlert]],
    config: RuleConfig,
) -> None:
    """Open or repeat the alert of each title (2, 4)."""
    if not alerts:
        return
    by_title = {
        str(row.data.get("title")): row for row in open_alerts_of_rule(session, SCRIPT.name, run_id)
    }
    for step, reported in alerts.values():
        is_further = reported.title not in by_title and len(by_title) >= MAX_OPEN
        title = FURTHER_TITLE if is_further else reported.title
        row = by_title.get(title)
        before = int(row.data.get("count") or 0) if row is not None else 0
        alert = replace(reported, title=title, count=before + reported.count)
        rule_input = RuleInput(step=step, script_alert=alert)
        result = config.rule.decide(rule_input, config.thresholds, row is not None)
        severity = config.severity(result.level) or "note"
        if row is None:
            row = incidents.open(
                run_id,
                None,
                SCRIPT.name,
                severity=severity,
                step=step,
                data=result.data,
                cause=result.cause,
            )
            incidents.escalate(row, severity=severity, step=step, data=result.data)
            by_title[alert.title] = row
        else:
            _repeat(incidents, row, severity, step, result.data)


def _repeat(
    incidents: IncidentTransaction, row: AlertRow, severity: str, step: int, data: dict[str, Any]
) -> None:
    if incidents.is_worse(row, severity):
        incidents.escalate(row, severity=severity, step=step, data=data)
    else:
        incidents.refresh(row, step=step, data=data)


def _close_quiet(
    session: Session, incidents: IncidentTransaction, run_id: str, config: RuleConfig, now: float
) -> None:
    quiet_s = config.thresholds["quiet_s"] if config.is_on else 0.0
    reason = f"not repeated for {format_duration(quiet_s)}" if config.is_on else SWITCHED_OFF
    for alert in open_alerts_of_rule(session, SCRIPT.name, run_id):
        # one of this transaction isn't quiet, even if the rule is off
        if now - alert.updated_at >= quiet_s and alert.updated_at < now:
            incidents.end(alert, "averted", step=alert.step, reason=reason)
