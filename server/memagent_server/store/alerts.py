"""Alerts and their transitions. A change of an alert, its transition and the notifications it causes are one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import CursorResult, and_, func, or_, select, update
from sqlalchemy.orm import Session

from memagent_server.store.incidents import incidents_by_id, newest_incidents
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    Alert,
    Incident,
    Notification,
    Rank,
    Run,
    Stream,
    Transition,
)
from memagent_server.store.paging import newest, position
from memagent_server.store.timestamps import iso

UNHEARD_STATUSES = ("oom", "lost_contact")
"""Ends that people are told of even where no alert was open."""


def open_alert(
    session: Session,
    *,
    run_id: str,
    stream_id: int | None,
    incident_id: int | None = None,
    rule: str,
    severity: str,
    state: str,
    step: int,
    summary: str,
    data: dict[str, Any],
    now: float,
) -> Alert:
    """A new alert; its transitions are added by `add_transition`."""
    alert = Alert(
        run_id=run_id,
        stream_id=stream_id,
        incident_id=incident_id,
        rule=rule,
        severity=severity,
        state=state,
        version=0,
        opened_at=now,
        updated_at=now,
        first_step=step,
        step=step,
        summary=summary,
        data=data,
    )
    session.add(alert)
    session.flush()
    return alert


def change_alert(session: Session, alert: Alert, *, now: float, **changes: Any) -> bool:
    """Change an alert if nobody else has since it was read; False when somebody had (another worker was quicker)."""
    if changes.get("state", alert.state) not in OPEN_ALERT_STATES:
        changes["closed_at"] = now
    result = session.execute(
        update(Alert)
        .where(Alert.id == alert.id, Alert.version == alert.version)
        .values(version=alert.version + 1, updated_at=now, **changes)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    if result.rowcount != 1:
        return False
    session.refresh(alert)
    return True


def add_transition(
    session: Session,
    alert: Alert,
    *,
    from_state: str,
    to_state: str,
    reason: str,
    now: float,
    channels: Collection[str] = (),
) -> Transition:
    """Record a change, and put a notification for each of `channels` into the outbox."""
    transition = Transition(
        alert_id=alert.id,
        at=now,
        step=alert.step,
        from_state=from_state,
        to_state=to_state,
        severity=alert.severity,
        reason=reason,
        data=alert.data,
    )
    session.add(transition)
    session.flush()
    notify(session, alert, transition, channels, now)
    return transition


def notify(
    session: Session, alert: Alert, transition: Transition, channels: Collection[str], now: float
) -> None:
    """Put a notification of a transition for each of `channels` into the outbox."""
    for channel in channels:
        session.add(
            Notification(
                alert_id=alert.id,
                transition_id=transition.id,
                incident_id=alert.incident_id,
                channel=channel,
                dedup_key=f"{alert.run_id}:{transition.id}:{channel}",  # SQLite gives the ids of deleted rows to new ones
                state="waiting",
                attempts=0,
                created_at=now,
                next_attempt_at=now,
            )
        )


def open_alerts(session: Session, run_id: str) -> list[Alert]:
    query = (
        select(Alert)
        .where(Alert.run_id == run_id, Alert.state.in_(OPEN_ALERT_STATES))
        .order_by(Alert.id)
    )
    return list(session.scalars(query))


def open_alerts_by_run(session: Session, run_ids: Collection[str]) -> dict[str, list[Alert]]:
    """The open alerts of many runs; those that have none are missing."""
    if not run_ids:
        return {}
    query = select(Alert).where(Alert.state.in_(OPEN_ALERT_STATES)).order_by(Alert.id)
    found: dict[str, list[Alert]] = {}
    for alert in session.scalars(query.execution_options(populate_existing=True)):
        if alert.run_id in run_ids:
            found.setdefault(alert.run_id, []).append(alert)
    return found


def find_open(session: Session, run_id: str, rule: str, stream_id: int | None) -> Alert | None:
    """The open alert of a rule about a stream; the newest of the run's where `stream_id` is None."""
    query = select(Alert).where(
        Alert.run_id == run_id, Alert.rule == rule, Alert.state.in_(OPEN_ALERT_STATES)
    )
    if stream_id is not None:
        query = query.where(Alert.stream_id == stream_id)
    return session.scalar(
        query.order_by(Alert.id.desc()).limit(1).execution_options(populate_existing=True)
    )


def open_but_over(session: Session) -> list[str]:
    """Ids of runs with an open alert although the run has ended, or the launch that it was about."""
    query = (
        select(Alert.run_id)
        .join(Run, Run.id == Alert.run_id)
        .outerjoin(Stream, Stream.id == Alert.stream_id)
        .where(
            Alert.state.in_(OPEN_ALERT_STATES),
            or_(Run.status != "running", Stream.is_current.is_(False)),
        )
    )
    return list(session.scalars(query.distinct()))


def ended_unheard(
    session: Session, run_id: str | None = None, *, seen_after: float | None = None
) -> list[Run]:
    """Runs whose newest launch died of out-of-memory or fell silent, and no alert says so; of one run, or of all seen after then.

    What was uploaded after its end is history and is not told. A launch that fell silent, spoke and fell silent again has been
    heard of only if an alert is as new as the last silence. Only a warning that told people, or the end's own alert, says so.
    """
    current = (Rank.run_id == Run.id, Rank.is_current)
    launched_at = select(func.min(Rank.first_seen_at)).where(*current).scalar_subquery()
    silent_at = (
        select(func.max(Rank.finished_at))
        .where(*current, Rank.status == "lost_contact")
        .scalar_subquery()
    )
    is_of_launch = or_(
        Stream.is_current, and_(Alert.stream_id.is_(None), Alert.opened_at >= launched_at)
    )
    is_of_end = or_(Run.status == "oom", Alert.closed_at >= func.coalesce(silent_at, 0.0))
    says_so = or_(
        Alert.rule == Run.status, and_(Alert.rule == "oom_forecast", Alert.severity != "note")
    )
    heard = (
        select(Alert.id)
        .outerjoin(Stream, Stream.id == Alert.stream_id)
        .where(Alert.run_id == Run.id, Alert.state == Run.status, says_so, is_of_launch, is_of_end)
        .correlate(Run)
    )
    was_live = select(Rank.rank).where(*current, Rank.is_replayed.is_(False)).correlate(Run)
    query = select(Run).where(Run.status.in_(UNHEARD_STATUSES), ~heard.exists(), was_live.exists())
    if seen_after is not None:
        query = query.where(Run.last_seen_at > seen_after)
    return list(session.scalars(query if run_id is None else query.where(Run.id == run_id)))


def list_alerts(
    session: Session,
    *,
    state: str | None = None,
    run_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """The answer of GET /alerts, newest first. `state` may be `open`; without one, what was never confirmed is left out.

    `cursor` is what the answer before gave. Raises WireError for one that was not.
    """
    which = [Alert.state.in_(states) if (states := _states(state)) else Alert.state != "ok"]
    which += [] if run_id is None else [Alert.run_id == run_id]
    page, next_cursor = newest(session, Alert, *which, limit=limit, cursor=cursor)
    return {"alerts": _describe(session, page), "next_cursor": next_cursor}


def list_incidents(
    session: Session,
    *,
    state: str | None = None,
    run_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> dict[str, Any]:
    """Incidents, newest first, each with its alerts in the order in which they opened. Otherwise as `list_alerts`."""
    found = newest_incidents(
        session, states=_states(state), run_id=run_id, limit=limit + 1, before=position(cursor)
    )
    page = found[:limit]
    ids = [incident.id for incident in page]
    alerts = list(
        session.scalars(select(Alert).where(Alert.incident_id.in_(ids)).order_by(Alert.id))
    )
    described = _describe(session, alerts)
    return {
        "incidents": [
            {
                **describe_incident(item),
                "alerts": [alert for alert in described if alert["incident_id"] == item.id],
            }
            for item in page
        ],
        "next_cursor": str(page[-1].id) if len(found) > limit else None,
    }


def describe_incident(incident: Incident) -> dict[str, Any]:
    """As docs/http.md has it."""
    return {
        "id": incident.id,
        "run_id": incident.run_id,
        "rule": incident.rule,
        "cause": incident.cause,
        "state": incident.state,
        "severity": incident.severity,
        "opened_at": iso(incident.opened_at),
        "updated_at": iso(incident.updated_at),
        "closed_at": iso(incident.closed_at),
        "acked_at": iso(incident.acked_at),
        "acked_by": incident.acked_by,
        "snoozed_until": iso(incident.snoozed_until),
        "false_alarm_at": iso(incident.false_alarm_at),
        "note": incident.note,
    }


def describe_alert(session: Session, alert_id: int) -> dict[str, Any] | None:
    """One alert as docs/http.md has it, None for an unknown one."""
    alert = session.get(Alert, alert_id)
    return _describe(session, [alert])[0] if alert is not None else None


def _states(state: str | None) -> tuple[str, ...] | None:
    return None if state is None else OPEN_ALERT_STATES if state == "open" else (state,)


def _describe(session: Session, alerts: Sequence[Alert]) -> list[dict[str, Any]]:
    """As docs/http.md has it, in five queries for any number of alerts."""
    ids = [alert.id for alert in alerts]
    runs = {
        run.id: run
        for run in session.scalars(
            select(Run).where(Run.id.in_({alert.run_id for alert in alerts}))
        )
    }
    wanted = {alert.stream_id for alert in alerts}
    streams = {
        stream.id: stream for stream in session.scalars(select(Stream).where(Stream.id.in_(wanted)))
    }
    incidents = incidents_by_id(session, {alert.incident_id for alert in alerts})
    transitions = list(
        session.scalars(
            select(Transition).where(Transition.alert_id.in_(ids)).order_by(Transition.id)
        )
    )
    notes = list(
        session.scalars(
            select(Notification).where(Notification.alert_id.in_(ids)).order_by(Notification.id)
        )
    )
    return [
        {
            "id": alert.id,
            "run_id": alert.run_id,
            "run_name": runs[alert.run_id].name,
            "project": runs[alert.run_id].project,
            "rank": streams[alert.stream_id].rank if alert.stream_id in streams else None,
            "device": streams[alert.stream_id].device if alert.stream_id in streams else None,
            "rule": alert.rule,
            "severity": alert.severity,
            "state": alert.state,
            "opened_at": iso(alert.opened_at),
            "updated_at": iso(alert.updated_at),
            "closed_at": iso(alert.closed_at),
            "first_step": alert.first_step,
            "step": alert.step,
            "summary": alert.summary,
            "data": alert.data,
            "incident_id": alert.incident_id,
            "incident": describe_incident(incidents[alert.incident_id])
            if alert.incident_id in incidents
            else None,
            "transitions": [
                _describe_transition(item) for item in transitions if item.alert_id == alert.id
            ],
            "notifications": [
                _describe_notification(item) for item in notes if item.alert_id == alert.id
            ],
        }
        for alert in alerts
    ]


def _describe_transition(transition: Transition) -> dict[str, Any]:
    return {
        "at": iso(transition.at),
        "step": transition.step,
        "from_state": transition.from_state,
        "to_state": transition.to_state,
        "severity": transition.severity,
        "reason": transition.reason,
    }


def _describe_notification(notification: Notification) -> dict[str, Any]:
    return {
        "channel": notification.channel,
        "state": notification.state,
        "attempts": notification.attempts,
        "sent_at": iso(notification.sent_at),
        "last_error": notification.last_error,
    }
