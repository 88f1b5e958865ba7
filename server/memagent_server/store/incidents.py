"""Incidents: alerts of one launch with one rule and one cause are one thing to people, and they say one thing about it.

1. An alert joins the open incident of its run, rule and cause, or begins one.
2. The incident's state is the worst of its alerts' and its severity the gravest: it is over when the last of them is.
3. What people say of an incident is kept twice: on the incident, and as feedback that outlives the run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from memagent_server.store.models import OPEN_ALERT_STATES, Alert, Feedback, Incident, Run, Stream


def enter_incident(
    session: Session, *, run_id: str, rule: str, cause: str | None, severity: str, now: float
) -> Incident:
    """The open incident that an alert belongs to, made if there is none. The run's row must be locked."""
    of_this_launch = (
        select(Alert.id)
        .outerjoin(Stream, Stream.id == Alert.stream_id)
        .where(Alert.incident_id == Incident.id, or_(Alert.stream_id.is_(None), Stream.is_current))
    )
    found = session.scalar(
        select(Incident)
        .where(
            Incident.run_id == run_id, Incident.rule == rule, Incident.cause == cause, Incident.closed_at.is_(None),
            of_this_launch.exists(),
        )
        .order_by(Incident.id.desc())
        .limit(1)
    )  # fmt: skip
    if found is not None:
        return found
    incident = Incident(
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


def alerts_of(session: Session, incident: Incident) -> list[Alert]:
    """All alerts of an incident, in the order in which they opened."""
    session.flush()
    return list(
        session.scalars(select(Alert).where(Alert.incident_id == incident.id).order_by(Alert.id))
    )


def change_incident(incident: Incident, *, state: str, severity: str, now: float) -> None:
    """Take over what the incident's alerts have come to."""
    incident.state, incident.severity, incident.updated_at = state, severity, now
    if state not in ("ok", "pending") and incident.fired_at is None:
        incident.fired_at = now
    incident.closed_at = None if state in OPEN_ALERT_STATES else now


def endangered_runs(session: Session, now: float, limit: int) -> list[Run]:
    """Runs that go on and have an incident that people were told of, the newest incident first; not those that somebody snoozed."""
    newest = (
        select(Incident.run_id, func.max(Incident.id).label("id"))
        .where(
            Incident.state == "firing", Incident.severity != "note",
            or_(Incident.snoozed_until.is_(None), Incident.snoozed_until <= now),
        )
        .group_by(Incident.run_id)
        .subquery()
    )  # fmt: skip
    query = (
        select(Run)
        .join(newest, newest.c.run_id == Run.id)
        .order_by(newest.c.id.desc())
        .limit(limit)
    )
    return list(session.scalars(query.where(Run.status == "running", Run.is_archived.is_(False))))


def incident_of(session: Session, alert_id: int) -> Incident | None:
    """The incident of an alert, its run's row locked, so that the worker does not change it meanwhile; None for an unknown alert."""
    run_id = session.scalar(select(Alert.run_id).where(Alert.id == alert_id))
    if run_id is None:
        return None
    session.execute(select(Run.id).where(Run.id == run_id).with_for_update(key_share=True))
    return session.scalar(
        select(Incident).join(Alert, Alert.incident_id == Incident.id).where(Alert.id == alert_id)
    )


def acknowledge(
    session: Session, incident: Incident, *, by: str | None, note: str | None, now: float
) -> None:
    """Somebody has seen it. Saying it twice changes nothing."""
    if incident.acked_at is None:
        incident.acked_at, incident.acked_by = now, by
        _keep(session, incident, "ack", by, note, now)


def snooze(
    session: Session,
    incident: Incident,
    *,
    until: float,
    by: str | None,
    note: str | None,
    now: float,
) -> None:
    """Nothing more is told of it before `until`, save how it ends."""
    incident.snoozed_until = until
    _keep(session, incident, "snooze", by, note, now)


def mark_false(
    session: Session, incident: Incident, *, by: str | None, note: str | None, now: float
) -> None:
    """Somebody says that nothing was wrong. Nothing more is told of it, unless the run dies after all."""
    if incident.false_alarm_at is None:
        incident.false_alarm_at = now
        _keep(session, incident, "false_alarm", by, note, now)


def woken(session: Session, now: float) -> list[Incident]:
    """Incidents that still fire and whose snooze is over."""
    query = select(Incident).where(Incident.state == "firing", Incident.snoozed_until <= now)
    return list(session.scalars(query.order_by(Incident.id)))


def incidents_by_id(session: Session, ids: Collection[int | None]) -> dict[int, Incident]:
    return {
        found.id: found for found in session.scalars(select(Incident).where(Incident.id.in_(ids)))
    }


def newest_incidents(
    session: Session,
    *,
    states: Sequence[str] | None,
    run_id: str | None,
    limit: int,
    before: int | None,
) -> list[Incident]:
    """Newest first. Without `states` all but those that were never confirmed."""
    query = select(Incident).order_by(Incident.id.desc()).limit(limit)
    query = (
        query.where(Incident.state.in_(states))
        if states is not None
        else query.where(Incident.state != "ok")
    )
    if run_id is not None:
        query = query.where(Incident.run_id == run_id)
    if before is not None:
        query = query.where(Incident.id < before)
    return list(session.scalars(query))


def _keep(
    session: Session, incident: Incident, kind: str, by: str | None, note: str | None, now: float
) -> None:
    incident.updated_at = now
    incident.note = note or incident.note
    run = session.get_one(Run, incident.run_id)
    session.add(
        Feedback(
            at=now, kind=kind, by=by, note=note, incident_id=incident.id, run_id=run.id, project=run.project, rule=incident.rule,
            cause=incident.cause,
        )
    )  # fmt: skip
