"""Alert changes of one transaction, and the one notification per incident that they cause.

1. Alerts open and move one by one, each move is a transition. A move that another worker has made
   already is ignored. The summary of an open alert follows its readings, without a transition.
2. `flush` gives each incident that changed the worst state of its alerts, and the worst severity of
   those that are open: of all once none is.
3. An incident notifies when it starts to fire, when it escalates, and when it ends, if its start
   was notified or its end is a death. An incident that fires and ends within one transaction
   notifies no one. The end of a rule without `tells_end` notifies no one either.
4. The routes decide to which channels (`alerts/routing.py`), their schedules when: in quiet hours
   the newest notification of an incident replaces those before.
5. A snoozed incident notifies only about its end; a false alarm only about a death.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from memagent_server.alerts.event_rules import MILESTONES
from memagent_server.alerts.routing import DEATHS, receivers, subject_of
from memagent_server.alerts.rules import RULES
from memagent_server.alerts.schedules import quiet_until
from memagent_server.alerts.state import worst_severity, worst_state
from memagent_server.alerts.stream_state import AlertChange
from memagent_server.alerts.summaries import closing_summary
from memagent_server.settings import SEVERITIES
from memagent_server.store.alerts import add_transition, change_alert, find_open, notify, open_alert
from memagent_server.store.engine import Session
from memagent_server.store.growth import GrowthSpan
from memagent_server.store.incidents import alerts_of, change_incident, first_step_of, join_incident
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    AlertRow,
    IncidentRow,
    RunRow,
    TransitionRow,
)
from memagent_server.store.reopening import reopen_averted
from memagent_server.store.routes import channels_told, list_routes
from memagent_server.store.schedules import list_schedules, replace_held

_CLOSING_REASONS = {"averted": "observations have returned to normal", "ok": "not confirmed"}


@dataclass
class _IncidentChanges:
    """Changes of one incident; `before` is its (state, severity) at the start."""

    incident: IncidentRow
    before: tuple[str, str]
    moves: list[tuple[AlertRow, TransitionRow]] = field(default_factory=list)


class IncidentTransaction:
    """Apply the changes of runs whose rows are locked, then call `flush` once."""

    def __init__(self, session: Session, channels: Collection[str], now: float) -> None:
        self._session = session
        self._channels = tuple(channels)
        self._now = now
        self._changes: dict[int, _IncidentChanges] = {}

    def apply(self, run_id: str, stream_id: int | None, change: AlertChange) -> None:
        """Apply one change to the alert that it's about, unless the store is past it already."""
        alert = find_open(self._session, run_id, change.rule, stream_id, change.cause)
        state, result = change.state, change.result
        if not state.is_open:
            open_state = "firing" if state.state == "averted" else "pending"
            # otherwise another worker has moved it on already
            if alert is not None and alert.state == open_state:
                reason = change.reason or _CLOSING_REASONS[state.state]
                self.end(alert, state.state, step=change.step, reason=reason)
            return
        if alert is None:
            alert = self.open(
                run_id,
                stream_id,
                change.rule,
                severity=state.severity,
                step=change.step,
                data=result.data,
                cause=result.cause,
            )
        is_worse = self.is_worse(alert, state.severity)
        if state.state == "firing" and (alert.state != "firing" or is_worse):
            self.escalate(alert, severity=state.severity, step=change.step, data=result.data)
        elif RULES[alert.rule].reading and change.step > alert.step:
            self.refresh(alert, step=change.step, data=result.data)

    @staticmethod
    def is_worse(alert: AlertRow, severity: str) -> bool:
        """Return True if `severity` is higher than the alert's."""
        return worst_severity(severity, alert.severity) != alert.severity

    def open(
        self,
        run_id: str,
        stream_id: int | None,
        rule: str,
        *,
        severity: str,
        step: int,
        data: Mapping[str, Any],
        cause: str | None,
        reason: str | None = None,
    ) -> AlertRow:
        """Open a pending alert."""
        incident = join_incident(
            self._session, run_id=run_id, rule=rule, cause=cause, severity=severity, now=self._now
        )
        changes = self._changes_of(incident)
        summary = RULES[rule].summarize(dict(data))
        alert = open_alert(
            self._session,
            run_id=run_id,
            stream_id=stream_id,
            incident_id=incident.id,
            rule=rule,
            severity=severity,
            state="pending",
            step=step,
            summary=summary,
            data=dict(data),
            now=self._now,
        )
        transition = self._add_transition(alert, "ok", "pending", reason or summary)
        changes.moves.append((alert, transition))
        return alert

    def refresh(self, alert: AlertRow, *, step: int, data: Mapping[str, Any]) -> None:
        """Bring an open alert's summary up to date; nobody is notified."""
        summary = RULES[alert.rule].summarize(dict(data))
        change_alert(
            self._session, alert, now=self._now, step=step, summary=summary, data=dict(data)
        )

    def escalate(
        self,
        alert: AlertRow,
        *,
        severity: str,
        step: int,
        data: Mapping[str, Any],
        reason: str | None = None,
    ) -> None:
        """Make an alert fire, or fire with a higher severity."""
        summary = RULES[alert.rule].summarize(dict(data))
        columns: dict[str, Any] = {
            "severity": worst_severity(severity, alert.severity),
            "step": step,
            "summary": summary,
            "data": dict(data),
        }
        if alert.state == "pending":
            columns["first_step"] = step  # no notification has mentioned an earlier one
            self._reopen_averted(alert, growth_of(data, alert.stream_id))
        self._move(alert, "firing", reason or summary, columns)

    def _reopen_averted(self, alert: AlertRow, growth: GrowthSpan | None) -> None:
        """Let a pending alert fire in the averted incident of the same growth, if there is one."""
        incident = self._session.get(IncidentRow, alert.incident_id) if growth else None
        if growth is None or incident is None:
            return
        incident_id = incident.id
        averted = reopen_averted(self._session, incident, growth)
        if averted is not None:
            changes = self._changes.pop(incident_id, None)
            self._changes_of(averted).moves.extend(changes.moves if changes else ())

    def end(self, alert: AlertRow, state: str, *, step: int, reason: str) -> None:
        """Close an alert with a final state, or with `ok` if it was never confirmed."""
        step = max(alert.step, step)
        columns: dict[str, Any] = {"step": step}
        if alert.rule not in (*DEATHS, *MILESTONES):
            columns["summary"] = closing_summary(
                alert.rule, alert.summary, state, self._first_step(alert), step
            )
        self._move(alert, state, reason, columns)

    def _first_step(self, alert: AlertRow) -> int:
        """Return the step of the incident's first warning, which may be another alert's."""
        incident = self._session.get(IncidentRow, alert.incident_id)
        first = None if incident is None else first_step_of(alerts_of(self._session, incident))
        return alert.first_step if first is None else min(first, alert.first_step)

    def remind(self, incident: IncidentRow) -> None:
        """Notify again about an incident that still fires after its snooze."""
        changes = self._changes_of(incident)
        incident.snoozed_until = None
        alerts = alerts_of(self._session, incident)
        firing = [alert for alert in alerts if alert.state == "firing"]
        alert = max(firing, key=lambda alert: SEVERITIES.index(alert.severity))
        reason = "the snooze is over, and the alert is still firing"
        transition = self._add_transition(alert, "firing", "firing", reason)
        changes.before = ("ok", changes.before[1])  # as if it started to fire now
        changes.moves.append((alert, transition))

    def flush(self) -> None:
        """Update the incidents and add the notifications to the outbox."""
        for changes in self._changes.values():
            incident = changes.incident
            alerts = alerts_of(self._session, incident)
            state = worst_state(*(alert.state for alert in alerts))
            # an ended alert must not make a mere note of the others notify people
            of_state = [alert for alert in alerts if alert.state in OPEN_ALERT_STATES] or alerts
            severity = worst_severity(*(alert.severity for alert in of_state))
            if (state, severity) != (incident.state, incident.severity):
                change_incident(incident, state=state, severity=severity, now=self._now)
            after = (state, severity)
            if changes.moves and needs_notification(changes.before, after, incident, self._now):
                # The notification is about the newest move that led to the incident's state.
                leading = [move for move in changes.moves if move[1].to_state == state]
                alert, transition = (leading or changes.moves)[-1]
                self._notify(alert, transition)
        self._changes.clear()

    def _notify(self, alert: AlertRow, transition: TransitionRow) -> None:
        """Add notifications to the outbox, by the routes and schedules as they are now."""
        session, now = self._session, self._now
        subject = subject_of(session.get_one(RunRow, alert.run_id), alert, transition)
        notified = () if alert.incident_id is None else channels_told(session, alert.incident_id)
        channels = receivers(list_routes(session), subject, self._channels, notified)
        held_until = {
            channel: quiet_until(schedule, subject.severity, now)
            for channel, schedule in list_schedules(session).items()
        }
        if alert.incident_id is not None:
            # or what is held would hold back what follows
            replace_held(session, alert.incident_id, channels, now)
        notify(session, alert, transition, channels, now, held_until)

    def _changes_of(self, incident: IncidentRow) -> _IncidentChanges:
        initial = _IncidentChanges(incident, (incident.state, incident.severity))
        return self._changes.setdefault(incident.id, initial)

    def _move(self, alert: AlertRow, state: str, reason: str, columns: dict[str, Any]) -> None:
        before, changes = alert.state, None
        if alert.incident_id is not None:
            changes = self._changes_of(self._session.get_one(IncidentRow, alert.incident_id))
        if change_alert(self._session, alert, now=self._now, state=state, **columns):
            transition = self._add_transition(alert, before, state, reason)
            if changes is not None:
                changes.moves.append((alert, transition))

    def _add_transition(
        self, alert: AlertRow, before: str, after: str, reason: str
    ) -> TransitionRow:
        return add_transition(
            self._session, alert, from_state=before, to_state=after, reason=reason, now=self._now
        )


def growth_of(data: Mapping[str, Any], stream_id: int | None) -> GrowthSpan | None:
    """Return the growth that an alert's data is about, None if it's about something else."""
    since = data.get("growing_since_step")
    if since is None or stream_id is None:
        return None
    return GrowthSpan(stream_id, int(since), int(data["step"]))


def needs_notification(
    before: tuple[str, str], after: tuple[str, str], incident: IncidentRow, now: float
) -> bool:
    """Return True if a change from one (state, severity) to another notifies people (3, 5)."""
    (old_state, old_severity), (state, severity) = before, after
    if severity == "note" or state in ("ok", "pending"):
        return False
    tells_end = incident.rule not in RULES or RULES[incident.rule].tells_end
    if state in DEATHS or incident.rule in MILESTONES:
        return tells_end and state != old_state
    if incident.false_alarm_at is not None:
        return False
    if state != "firing":
        return tells_end and old_state == "firing" and old_severity != "note"
    if incident.snoozed_until is not None and now < incident.snoozed_until:
        return False
    is_worse = SEVERITIES.index(severity) > SEVERITIES.index(old_severity)
    return old_state != "firing" or is_worse
