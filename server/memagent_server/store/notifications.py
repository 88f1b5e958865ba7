"""Notifications as people and metrics see them, and what a message tells about their topic.

A topic is an incident, or an alert without one. How notifications are sent is in `outbox`.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import ColumnElement, CursorResult, func, select, update
from sqlalchemy.orm import Session

from memagent.forecast.types import PAGING_LEVELS
from memagent_server.schemas import alerts as schemas
from memagent_server.store.alerts import IS_STREAM_OF_ALERT
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    AlertRow,
    ForecastRow,
    NotificationRow,
    RunRow,
    StreamRow,
    TransitionRow,
)
from memagent_server.store.reading import id_before, to_schema

UNSENT = ("waiting", "leased")


def list_notifications(
    session: Session,
    *,
    state: str | None = None,
    channel: str | None = None,
    run_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> schemas.NotificationPage:
    """Return a page of notifications, the newest first. Raises WireError for a bad cursor."""
    query = (
        select(NotificationRow, TransitionRow, AlertRow, RunRow.name)
        .join(TransitionRow, TransitionRow.id == NotificationRow.transition_id)
        .join(AlertRow, AlertRow.id == NotificationRow.alert_id)
        .join(RunRow, RunRow.id == AlertRow.run_id)
        .order_by(NotificationRow.id.desc())
        .limit(limit + 1)
    )
    if state is not None:
        query = query.where(NotificationRow.state == state)
    if channel is not None:
        query = query.where(NotificationRow.channel == channel)
    if run_id is not None:
        query = query.where(AlertRow.run_id == run_id)
    if (before := id_before(cursor)) is not None:
        query = query.where(NotificationRow.id < before)
    rows = session.execute(query).all()
    page = [_describe(*row) for row in rows[:limit]]
    return schemas.NotificationPage(page, str(page[-1].id) if len(rows) > limit else None)


def count_by_outcome(session: Session) -> dict[tuple[str, str], int]:
    """Return {(channel, state): notifications}."""
    query = select(NotificationRow.channel, NotificationRow.state, func.count()).group_by(
        NotificationRow.channel, NotificationRow.state
    )
    return {(channel, state): count for channel, state, count in session.execute(query)}


def retry(session: Session, notification_id: int) -> bool | None:
    """Send a dead or skipped notification again, with a new count of attempts.

    Return False if it's neither dead nor skipped, None if it doesn't exist.
    """
    if (
        session.scalar(select(NotificationRow.id).where(NotificationRow.id == notification_id))
        is None
    ):
        return None
    result = session.execute(
        update(NotificationRow)
        .where(
            NotificationRow.id == notification_id, NotificationRow.state.in_(("dead", "skipped"))
        )
        .values(
            state="waiting",
            attempts=0,
            next_attempt_at=NotificationRow.created_at,
            leased_until=None,
        )
    )
    assert isinstance(result, CursorResult)
    return bool(result.rowcount)


def topic_of(notification: NotificationRow) -> str:
    """Return the name of a notification's topic."""
    if notification.incident_id is None:
        return f"alert-{notification.alert_id}"
    return f"incident-{notification.incident_id}"


def ranks_of_topic(session: Session, notification: NotificationRow) -> list[int]:
    """Return the ranks of the alerts of a topic."""
    query = select(StreamRow.rank).join(AlertRow, IS_STREAM_OF_ALERT)
    query = query.where(_alert_is_of_topic(notification)).distinct().order_by(StreamRow.rank)
    return list(session.scalars(query))


def nearest_forecast(session: Session, notification: NotificationRow) -> ForecastRow | None:
    """Return the paging forecast with the nearest OOM of the topic's open alerts."""
    streams = select(AlertRow.stream_id).where(
        AlertRow.state.in_(OPEN_ALERT_STATES), _alert_is_of_topic(notification)
    )
    newest = (
        select(func.max(ForecastRow.id))
        .where(ForecastRow.stream_id.in_(streams))
        .group_by(ForecastRow.stream_id)
    )
    forecasts = session.scalars(
        select(ForecastRow).where(ForecastRow.id.in_(newest), ForecastRow.level.in_(PAGING_LEVELS))
    )
    return min(
        forecasts,
        key=lambda forecast: (forecast.eta_step is None, forecast.eta_step or 0.0),
        default=None,
    )


def _describe(
    notification: NotificationRow, transition: TransitionRow, alert: AlertRow, run_name: str
) -> schemas.Notification:
    described = to_schema(
        schemas.Notification,
        notification,
        run_id=alert.run_id,
        run_name=run_name,
        rule=alert.rule,
        severity=transition.severity,
        to_state=transition.to_state,
    )
    if notification.state in UNSENT:
        return described
    return msgspec.structs.replace(described, next_attempt_at=None)


def _alert_is_of_topic(notification: NotificationRow) -> ColumnElement[bool]:
    if notification.incident_id is not None:
        return AlertRow.incident_id == notification.incident_id
    return AlertRow.id == notification.alert_id
