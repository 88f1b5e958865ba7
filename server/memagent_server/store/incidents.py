"""Incidents: the alerts of one launch with the same rule and cause, which people handle as one.

1. An alert joins the open incident of its run, rule and cause, or opens one.
2. The incident has the worst state of its alerts, and the highest severity of those that are open.
   It closes with the last, and has the highest severity of all from then on.
3. An averted incident opens again if its growth never ended (`store/reopening.py`).
4. People's feedback is stored twice: with the incident, and as rows that outlive the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from memagent_server.schemas import alerts as schemas
from memagent_server.settings import SEVERITIES
from memagent_server.store.alerts import describe_alerts, wanted_states
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    UNCONFIRMED_STATES,
    AlertRow,
    FeedbackRow,
    IncidentRow,
    RunRow,
    StreamRow,
    TransitionRow,
)
from memagent_server.store.reading import newest_page, to_schema

SNOOZE_S = 3600.0
IncidentAction = Literal["ack", "snooze", "false-alarm", "undo"]


class IncidentClosedError(Exception):
    """Raised with the state of an incident that is over, and so can't be snoozed."""


def join_incident(
    session: Session, *, run_id: str, rule: str, cause: str | None, severity: str, now: float
) -> IncidentRow:
    """Return the incident that an alert belongs to, or open one. The run's row must be locked."""
    is_of_launch = is_of_newest_launch(AlertRow.incident_id == IncidentRow.id)
    incident = session.scalar(
        select(IncidentRow)
        .where(
            IncidentRow.run_id == run_id,
            IncidentRow.rule == rule,
            IncidentRow.cause == cause,
            IncidentRow.closed_at.is_(None),
            is_of_launch,
        )
        .order_by(IncidentRow.id.desc())
        .limit(1)
    )
    if incident is None:
        incident = IncidentRow(
            run_id=run_id,
            rule=rule,
            cause=cause,
            state="ok",
            severity=severity,
            opened_at=now,
            updated_at=now,
        )
        session.add(incident)
        session.flush()
    return incident


def first_step_of(alerts: Iterable[AlertRow | schemas.Alert]) -> int | None:
    """Return the step of the first warning of an incident, None if none was confirmed."""
    steps = [alert.first_step for alert in alerts if alert.state not in UNCONFIRMED_STATES]
    return min(steps, default=None)


def is_of_newest_launch(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that there is an alert of the newest launch with these conditions."""
    return (
        select(AlertRow.id)
        .outerjoin(StreamRow, StreamRow.id == AlertRow.stream_id)
        .where(*conditions, or_(AlertRow.stream_id.is_(None), StreamRow.is_current))
        .exists()
    )


def alerts_of(session: Session, incident: IncidentRow) -> list[AlertRow]:
    """Return the alerts of an incident in the order in which they opened."""
    session.flush()
    return list(
        session.scalars(
            select(AlertRow).where(AlertRow.incident_id == incident.id).order_by(AlertRow.id)
        )
    )


def change_incident(incident: IncidentRow, *, state: str, severity: str, now: float) -> None:
    """Set the state and severity that follow from the incident's alerts."""
    incident.state = state
    incident.severity = severity
    incident.updated_at = now
    if state not in ("ok", "pending") and incident.fired_at is None:
        incident.fired_at = now
    incident.closed_at = None if state in OPEN_ALERT_STATES else now


def lock_incident(session: Session, alert_id: int) -> IncidentRow | None:
    """Lock the run of an alert and return the alert's incident; None for an unknown alert.

    The lock keeps the worker from changing the incident at the same time.
    """
    run_id = session.scalar(select(AlertRow.run_id).where(AlertRow.id == alert_id))
    if run_id is None:
        return None
    session.execute(select(RunRow.id).where(RunRow.id == run_id).with_for_update(key_share=True))
    return session.scalar(
        select(IncidentRow)
        .join(AlertRow, AlertRow.incident_id == IncidentRow.id)
        .where(AlertRow.id == alert_id)
    )


def handle_incident(
    session: Session,
    incident: IncidentRow,
    action: IncidentAction,
    *,
    by: str | None,
    note: str | None = None,
    now: float,
    snooze_s: float = SNOOZE_S,
) -> None:
    """Record what a person did about a locked incident.

    Raises IncidentClosedError for a snooze of one that is over.
    """
    if action == "snooze":
        if incident.closed_at is not None:
            raise IncidentClosedError(incident.state)
        snooze(session, incident, until=now + snooze_s, by=by, note=note, now=now)
    elif action == "ack":
        acknowledge(session, incident, by=by, note=note, now=now)
    elif action == "undo":
        take_back(session, incident, now=now)
    else:
        mark_false(session, incident, by=by, note=note, now=now)


def feedback_on(session: Session, incident_id: int) -> list[FeedbackRow]:
    """Return people's feedback on an incident: the newest of each kind, the oldest first."""
    newest = (
        select(func.max(FeedbackRow.id))
        .where(FeedbackRow.incident_id == incident_id)
        .group_by(FeedbackRow.kind)
    )
    query = select(FeedbackRow).where(FeedbackRow.id.in_(newest)).order_by(FeedbackRow.id)
    return list(session.scalars(query))


def acknowledge(
    session: Session, incident: IncidentRow, *, by: str | None, note: str | None, now: float
) -> None:
    """Acknowledge an incident. A second acknowledgement changes nothing."""
    if incident.acked_at is None:
        incident.acked_at = now
        incident.acked_by = by
        _add_feedback(session, incident, "ack", by, note, now)


def snooze(
    session: Session,
    incident: IncidentRow,
    *,
    until: float,
    by: str | None,
    note: str | None,
    now: float,
) -> None:
    """Send no notifications about an incident before `until`, except about its end."""
    incident.snoozed_until = until
    _add_feedback(session, incident, "snooze", by, note, now)


def mark_false(
    session: Session, incident: IncidentRow, *, by: str | None, note: str | None, now: float
) -> None:
    """Mark a false alarm: no more notifications, unless the run crashes after all."""
    if incident.false_alarm_at is None:
        incident.false_alarm_at = now
        _add_feedback(session, incident, "false_alarm", by, note, now)


def take_back(session: Session, incident: IncidentRow, *, now: float) -> None:
    """Take back what people did about an incident, their notes and feedback included.

    A snooze ends now instead, with a reminder, if it or a false alarm held a notification back.
    """
    incident.snoozed_until = now if _has_held_back(session, incident) else None
    incident.acked_at = None
    incident.acked_by = None
    incident.false_alarm_at = None
    incident.note = None
    incident.updated_at = now
    session.execute(delete(FeedbackRow).where(FeedbackRow.incident_id == incident.id))


def _has_held_back(session: Session, incident: IncidentRow) -> bool:
    """Return True if an incident is worse than it was when somebody muted it."""
    muted_at = [incident.false_alarm_at] if incident.false_alarm_at is not None else []
    if incident.snoozed_until is not None:
        muted_at += [item.at for item in feedback_on(session, incident.id) if item.kind == "snooze"]
    if not muted_at or incident.state != "firing":
        return False
    query = (
        select(TransitionRow.severity)
        .join(AlertRow, AlertRow.id == TransitionRow.alert_id)
        .where(
            AlertRow.incident_id == incident.id,
            AlertRow.state == "firing",
            TransitionRow.to_state == "firing",
            TransitionRow.at <= min(muted_at),
        )
    )
    known = max(map(SEVERITIES.index, session.scalars(query)), default=SEVERITIES.index("note"))
    return SEVERITIES.index(incident.severity) > known


def ended_snoozes(session: Session, now: float) -> list[IncidentRow]:
    """Return firing incidents whose snooze is over."""
    query = select(IncidentRow).where(
        IncidentRow.state == "firing", IncidentRow.snoozed_until <= now
    )
    return list(session.scalars(query.order_by(IncidentRow.id)))


def count_firing_incidents(session: Session) -> int:
    """Return the number of firing incidents that sent notifications and wait for someone."""
    query = (
        select(func.count())
        .select_from(IncidentRow)
        .where(
            IncidentRow.state == "firing",
            IncidentRow.severity != "note",
            IncidentRow.acked_at.is_(None),
        )
    )
    return session.scalar(query) or 0


def endangered_runs(session: Session, now: float, limit: int) -> list[RunRow]:
    """Return running runs with a firing incident that isn't snoozed, the newest incident first."""
    newest = (
        select(IncidentRow.run_id, func.max(IncidentRow.id).label("id"))
        .where(
            IncidentRow.state == "firing",
            IncidentRow.severity != "note",
            or_(IncidentRow.snoozed_until.is_(None), IncidentRow.snoozed_until <= now),
        )
        .group_by(IncidentRow.run_id)
        .subquery()
    )
    query = (
        select(RunRow)
        .join(newest, newest.c.run_id == RunRow.id)
        .where(RunRow.status == "running", RunRow.is_archived.is_(False))
        .order_by(newest.c.id.desc())
        .limit(limit)
    )
    return list(session.scalars(query))


def list_incidents(
    session: Session,
    *,
    state: str | None = None,
    run_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> schemas.IncidentPage:
    """Return a page of incidents, the newest first, each with its alerts.

    `state` may be `open`; without a state, incidents that were never confirmed are left out.
    Raises WireError for a bad cursor.
    """
    states = wanted_states(state)
    conditions = [IncidentRow.state != "ok" if states is None else IncidentRow.state.in_(states)]
    conditions += [] if run_id is None else [IncidentRow.run_id == run_id]
    rows, next_cursor = newest_page(session, IncidentRow, *conditions, limit=limit, cursor=cursor)
    ids = [row.id for row in rows]
    alerts = describe_alerts(
        session,
        session.scalars(
            select(AlertRow).where(AlertRow.incident_id.in_(ids)).order_by(AlertRow.id)
        ).all(),
    )
    incidents = [
        to_schema(
            schemas.Incident, row, alerts=[alert for alert in alerts if alert.incident_id == row.id]
        )
        for row in rows
    ]
    return schemas.IncidentPage(incidents, next_cursor)


def _add_feedback(
    session: Session, incident: IncidentRow, kind: str, by: str | None, note: str | None, now: float
) -> None:
    incident.updated_at = now
    incident.note = note or incident.note
    run = session.get_one(RunRow, incident.run_id)
    session.add(
        FeedbackRow(
            at=now,
            kind=kind,
            by=by,
            note=note,
            incident_id=incident.id,
            run_id=run.id,
            project=run.project,
            rule=incident.rule,
            cause=incident.cause,
        )
    )
