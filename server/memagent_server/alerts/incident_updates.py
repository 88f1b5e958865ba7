"""What one transaction does to the alerts of a run, and the one message that each incident makes of it.

1. Alerts open and move as they come, each move a transition. A move that another worker has made already is none.
2. When the ledger is settled, each incident that was touched takes the worst state and gravest severity of its alerts.
3. People are told of an incident that began to fire or got graver, and of its end, if they had been told of it or it is a death.
   What fired and ended within one transaction was read too late to be told.
4. While an incident is snoozed, or was called a false alarm, only its end is told; of a false alarm only a death.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from memagent_server.alerts.rules import RULES, how_it_ended
from memagent_server.alerts.state import gravest, worst_state
from memagent_server.settings import SEVERITIES
from memagent_server.store.alerts import add_transition, change_alert, notify, open_alert
from memagent_server.store.incidents import alerts_of, change_incident, enter_incident
from memagent_server.store.models import Alert, Incident, Transition

DEATHS = ("oom", "lost_contact")


@dataclass
class _Page:
    """What has happened to one incident in this transaction."""

    incident: Incident
    before: tuple[str, str]
    moves: list[tuple[Alert, Transition]] = field(default_factory=list)


class IncidentTransaction:
    """Make the changes of a run whose row is locked, then `settle` once."""

    def __init__(self, session: Session, channels: Collection[str], now: float) -> None:
        self._session, self._channels, self._now = session, tuple(channels), now
        self._pages: dict[int, _Page] = {}

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
    ) -> Alert:
        """A new pending alert."""
        incident = enter_incident(
            self._session, run_id=run_id, rule=rule, cause=cause, severity=severity, now=self._now
        )
        facts, page = dict(data), self._page(incident)
        summary = RULES[rule].summarize(facts)
        alert = open_alert(
            self._session, run_id=run_id, stream_id=stream_id, incident_id=incident.id, rule=rule, severity=severity, state="pending",
            step=step, summary=summary, data=facts, now=self._now,
        )  # fmt: skip
        page.moves.append((alert, self._transition(alert, "ok", "pending", reason or summary)))
        return alert

    def raise_(
        self,
        alert: Alert,
        *,
        severity: str,
        step: int,
        data: Mapping[str, Any],
        reason: str | None = None,
    ) -> None:
        """The alert fires, or fires graver."""
        facts, before = dict(data), alert.state
        summary = RULES[alert.rule].summarize(facts)
        changes: dict[str, Any] = {
            "severity": gravest(severity, alert.severity),
            "step": step,
            "summary": summary,
        }
        changes["data"] = facts
        if before == "pending":
            changes["first_step"] = step  # the first that people can have heard of
        self._move(alert, before, "firing", reason or summary, changes)

    def end(self, alert: Alert, state: str, *, step: int, reason: str) -> None:
        """The alert is over: averted, finished, oom, lost_contact, or `ok` where it was never confirmed."""
        before, step = alert.state, max(alert.step, step)
        changes: dict[str, Any] = {"step": step}
        if alert.rule not in DEATHS:
            changes["summary"] = how_it_ended(
                alert.rule, alert.summary, state, alert.first_step, step
            )
        self._move(alert, before, state, reason, changes)

    def remind(self, incident: Incident) -> None:
        """Tell again of an incident that still fires after its snooze."""
        page = self._page(incident)
        incident.snoozed_until = None
        alert = next(
            alert for alert in alerts_of(self._session, incident) if alert.state == "firing"
        )
        transition = self._transition(
            alert, "firing", "firing", "the snooze is over, and it still stands"
        )
        page.before = ("ok", page.before[1])
        page.moves.append((alert, transition))

    def settle(self) -> None:
        """Bring the incidents up to date and put the messages into the outbox."""
        for page in self._pages.values():
            alerts = alerts_of(self._session, page.incident)
            state = worst_state(*(alert.state for alert in alerts))
            severity = gravest(*(alert.severity for alert in alerts))
            if (state, severity) != (page.incident.state, page.incident.severity):
                change_incident(page.incident, state=state, severity=severity, now=self._now)
            if page.moves and is_news(page.before, (state, severity), page.incident, self._now):
                alert, transition = _bearer(page, state)
                notify(self._session, alert, transition, self._channels, self._now)
        self._pages.clear()

    def _page(self, incident: Incident) -> _Page:
        return self._pages.setdefault(
            incident.id, _Page(incident, (incident.state, incident.severity))
        )

    def _move(
        self, alert: Alert, before: str, after: str, reason: str, changes: dict[str, Any]
    ) -> None:
        if alert.incident_id is not None:
            page = self._page(self._session.get_one(Incident, alert.incident_id))
        if change_alert(self._session, alert, now=self._now, state=after, **changes):
            transition = self._transition(alert, before, after, reason)
            if alert.incident_id is not None:
                page.moves.append((alert, transition))

    def _transition(self, alert: Alert, before: str, after: str, reason: str) -> Transition:
        return add_transition(
            self._session, alert, from_state=before, to_state=after, reason=reason, now=self._now
        )


def is_news(
    before: tuple[str, str], after: tuple[str, str], incident: Incident, now: float
) -> bool:
    """Whether people are told that an incident went from one (state, severity) to another."""
    (was, was_severity), (state, severity) = before, after
    if severity == "note" or state in ("ok", "pending"):
        return False
    if state in DEATHS:
        return state != was
    if incident.false_alarm_at is not None:
        return False
    if state != "firing":
        return was == "firing" and was_severity != "note"
    is_quiet = incident.snoozed_until is not None and now < incident.snoozed_until
    return not is_quiet and (
        was != "firing" or SEVERITIES.index(severity) > SEVERITIES.index(was_severity)
    )


def _bearer(page: _Page, state: str) -> tuple[Alert, Transition]:
    """The move that the message is about: the newest that led to where the incident is, else the newest."""
    leading = [move for move in page.moves if move[1].to_state == state]
    return (leading or page.moves)[-1]
