"""Alerts and transitions. A change, its transition and its notifications are one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, and_, func, or_, select, update
from sqlalchemy.orm import Session

from memagent_server.schemas import alerts as schemas
from memagent_server.schemas.base import JsonObject
from memagent_server.store.models import (
    ENDED_ALERT_STATES,
    OPEN_ALERT_STATES,
    AlertRow,
    IncidentRow,
    NotificationRow,
    RunRow,
    StreamRow,
    TransitionRow,
)
from memagent_server.store.reading import newest_page, to_schema

IS_STREAM_OF_ALERT = and_(StreamRow.run_id == AlertRow.run_id, StreamRow.id == AlertRow.stream_id)


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
    data: JsonObject,
    now: float,
) -> AlertRow:
    """Create an alert. `add_transition` adds its transitions."""
    alert = AlertRow(
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


def change_alert(session: Session, alert: AlertRow, *, now: float, **changes: Any) -> bool:
    """Change an alert unless another worker changed it meanwhile; return True if changed."""
    if changes.get("state", alert.state) not in OPEN_ALERT_STATES:
        changes["closed_at"] = now
    result = session.execute(
        update(AlertRow)
        .where(AlertRow.id == alert.id, AlertRow.version == alert.version)
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
    alert: AlertRow,
    *,
    from_state: str,
    to_state: str,
    reason: str,
    now: float,
    channels: Collection[str] = (),
) -> TransitionRow:
    """Record a transition and add a notification to the outbox for each of `channels`."""
    transition = TransitionRow(
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
    session: Session,
    alert: AlertRow,
    transition: TransitionRow,
    channels: Collection[str],
    now: float,
    held_until: Mapping[str, float | None] | None = None,
) -> None:
    """Add a notification of a transition to the outbox for each of `channels`.

    `held_until` has the end of a channel's quiet hours.
    """
    for channel in channels:
        session.add(
            NotificationRow(
                alert_id=alert.id,
                transition_id=transition.id,
                incident_id=alert.incident_id,
                channel=channel,
                # with the run, for SQLite reuses the ids of deleted transitions
                dedup_key=f"{alert.run_id}:{transition.id}:{channel}",
                state="waiting",
                attempts=0,
                created_at=now,
                next_attempt_at=now,
                held_until=(held_until or {}).get(channel),
            )
        )


def open_alerts(session: Session, run_id: str) -> list[AlertRow]:
    """Return the open alerts of a run by id."""
    query = select(AlertRow).where(AlertRow.run_id == run_id, AlertRow.state.in_(OPEN_ALERT_STATES))
    return list(session.scalars(query.order_by(AlertRow.id)))


def open_alerts_of_rule(session: Session, rule: str, run_id: str | None = None) -> list[AlertRow]:
    """Return the open alerts of a rule by id, of all runs or one."""
    query = select(AlertRow).where(AlertRow.rule == rule, AlertRow.state.in_(OPEN_ALERT_STATES))
    if run_id is not None:
        query = query.where(AlertRow.run_id == run_id)
    return list(
        session.scalars(query.order_by(AlertRow.id).execution_options(populate_existing=True))
    )


def open_alerts_by_run(session: Session, run_ids: Collection[str]) -> dict[str, list[AlertRow]]:
    """Return the open alerts of many runs; a run without open alerts is missing."""
    if not run_ids:
        return {}
    query = select(AlertRow).where(AlertRow.state.in_(OPEN_ALERT_STATES)).order_by(AlertRow.id)
    by_run: dict[str, list[AlertRow]] = {}
    for alert in session.scalars(query.execution_options(populate_existing=True)):
        if alert.run_id in run_ids:
            by_run.setdefault(alert.run_id, []).append(alert)
    return by_run


def find_open(
    session: Session, run_id: str, rule: str, stream_id: int | None, cause: str | None = None
) -> AlertRow | None:
    """Return a rule's newest open alert for a stream, or for the run if `stream_id` is None.

    With `cause`, the alert of an incident with it.
    """
    query = select(AlertRow).where(
        AlertRow.run_id == run_id, AlertRow.rule == rule, AlertRow.state.in_(OPEN_ALERT_STATES)
    )
    if stream_id is not None:
        query = query.where(AlertRow.stream_id == stream_id)
    if cause is not None:
        query = query.join(IncidentRow, IncidentRow.id == AlertRow.incident_id)
        query = query.where(IncidentRow.cause == cause)
    return session.scalar(
        query.order_by(AlertRow.id.desc()).limit(1).execution_options(populate_existing=True)
    )


def averted_warning(
    session: Session, run_id: str, stream_id: int, growing_since: int
) -> AlertRow | None:
    """Return the newest averted warning of a stream's growth that began at this step."""
    query = select(AlertRow).where(
        AlertRow.run_id == run_id,
        AlertRow.stream_id == stream_id,
        AlertRow.rule == "oom_forecast",
        AlertRow.severity != "note",
        AlertRow.state == "averted",
        AlertRow.first_step >= growing_since,
    )
    return session.scalar(query.order_by(AlertRow.id.desc()).limit(1))


def count_firing(session: Session) -> dict[tuple[str, str], int]:
    """Return {(rule, severity): firing alerts}."""
    query = (
        select(AlertRow.rule, AlertRow.severity, func.count())
        .where(AlertRow.state == "firing")
        .group_by(AlertRow.rule, AlertRow.severity)
    )
    return {(rule, severity): count for rule, severity, count in session.execute(query)}


def runs_with_stale_alerts(session: Session) -> list[str]:
    """Return ids of runs with an open alert although the run, or the alert's launch, is over."""
    query = (
        select(AlertRow.run_id)
        .join(RunRow, RunRow.id == AlertRow.run_id)
        .outerjoin(
            StreamRow, (StreamRow.run_id == RunRow.id) & (StreamRow.id == AlertRow.stream_id)
        )
        .where(
            AlertRow.state.in_(OPEN_ALERT_STATES),
            or_(RunRow.status != "running", StreamRow.is_current.is_(False)),
        )
    )
    return list(session.scalars(query.distinct()))


def list_alerts(
    session: Session,
    *,
    state: str | None = None,
    run_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> schemas.AlertPage:
    """Return a page of alerts, the newest first. Raises WireError for a bad cursor.

    `state` may be `open`; without a state, alerts that were never confirmed are left out.
    """
    states = wanted_states(state)
    conditions = [AlertRow.state != "ok" if states is None else AlertRow.state.in_(states)]
    conditions += [] if run_id is None else [AlertRow.run_id == run_id]
    rows, next_cursor = newest_page(session, AlertRow, *conditions, limit=limit, cursor=cursor)
    return schemas.AlertPage(describe_alerts(session, rows), next_cursor)


def describe_alert(session: Session, alert_id: int) -> schemas.Alert | None:
    """Return an alert, None if it doesn't exist."""
    alert = session.get(AlertRow, alert_id)
    return describe_alerts(session, [alert])[0] if alert is not None else None


def wanted_states(state: str | None) -> tuple[str, ...] | None:
    """Return the states that a filter stands for; None without a filter."""
    if state is None:
        return None
    return {"open": OPEN_ALERT_STATES, "ended": ENDED_ALERT_STATES}.get(state, (state,))


def describe_alerts(session: Session, alerts: Sequence[AlertRow]) -> list[schemas.Alert]:
    """Return alerts with what belongs to them, in five queries for any number of alerts."""
    ids = [alert.id for alert in alerts]
    runs = _by_id(session, RunRow, (alert.run_id for alert in alerts))
    streams = _by_id(session, StreamRow, (alert.stream_id for alert in alerts))
    incidents = _by_id(session, IncidentRow, (alert.incident_id for alert in alerts))
    transitions: dict[int, list[schemas.Transition]] = defaultdict(list)
    for transition in session.scalars(
        select(TransitionRow).where(TransitionRow.alert_id.in_(ids)).order_by(TransitionRow.id)
    ):
        transitions[transition.alert_id].append(to_schema(schemas.Transition, transition))
    deliveries: dict[int, list[schemas.Delivery]] = defaultdict(list)
    for notification in session.scalars(
        select(NotificationRow)
        .where(NotificationRow.alert_id.in_(ids))
        .order_by(NotificationRow.id)
    ):
        deliveries[notification.alert_id].append(to_schema(schemas.Delivery, notification))
    described = []
    for alert in alerts:
        run, stream = runs[alert.run_id], streams.get(alert.stream_id)
        incident = incidents.get(alert.incident_id)
        described.append(
            to_schema(
                schemas.Alert,
                alert,
                run_name=run.name,
                project=run.project,
                rank=None if stream is None else stream.rank,
                device=None if stream is None else stream.device,
                incident=incident and to_schema(schemas.IncidentSummary, incident),
                transitions=transitions[alert.id],
                notifications=deliveries[alert.id],
            )
        )
    return described


def _by_id(session: Session, model: Any, ids: Iterable[Any]) -> dict[Any, Any]:
    return {row.id: row for row in session.scalars(select(model).where(model.id.in_(set(ids))))}
