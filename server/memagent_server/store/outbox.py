"""The outbox: notifications wait here until their channel has accepted them.

1. A notification is written in the transaction of the transition that causes it.
2. A dispatcher leases the oldest due notification, sends it, then marks it sent. A crash in between
   sends it again and never loses it.
3. An expired lease counts as none. A dispatcher without the lease can no longer change the
   notification, with one exception: sent stays sent.
4. A topic is an incident, or an alert without one. Per topic and channel only the oldest unsent
   notification is leased, which keeps the order. A refresh (an edit of a sent message) holds a
   lease on the notification that it edits, and later ones wait for it.
5. A failed notification is retried with growing delays. After MAX_ATTEMPTS, or if the channel says
   never, it's dead; people can see it and have it sent again.
6. A notification below the channel's severity is skipped, and visible as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, CursorResult, Select, and_, case, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from memagent.forecast.types import PAGING_LEVELS
from memagent_server.schemas import alerts as schemas
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    Alert,
    Forecast,
    Incident,
    Notification,
    Run,
    Stream,
    Transition,
)
from memagent_server.store.reading import id_before, to_schema

MAX_ATTEMPTS = 20
MAX_LEASE_S = 60.0
MAX_WAIT_S = 3_600.0
"""A lease or delay that ends later than these allow was set before the clock went back: it's
over.
"""
_UNSENT = ("waiting", "leased")


@dataclass(frozen=True)
class ChannelFilter:
    """The notifications of one channel, or with no `channel` those of all channels but `others`."""

    channel: str | None
    others: tuple[str, ...] = ()

    def condition(self) -> ColumnElement[bool]:
        if self.channel is not None:
            return Notification.channel == self.channel
        return Notification.channel.not_in(self.others)


def topic_of(notification: Notification) -> str:
    """Return the name of a notification's topic."""
    if notification.incident_id is None:
        return f"alert-{notification.alert_id}"
    return f"incident-{notification.incident_id}"


def ranks_of_topic(session: Session, notification: Notification) -> list[int]:
    """Return the ranks of the alerts of a topic."""
    query = select(Stream.rank).join(Alert, Alert.stream_id == Stream.id)
    query = query.where(_alert_is_of_topic(notification)).distinct().order_by(Stream.rank)
    return list(session.scalars(query))


def nearest_forecast(session: Session, notification: Notification) -> Forecast | None:
    """Return the paging forecast with the nearest OOM among the newest of the topic's open
    alerts.
    """
    streams = select(Alert.stream_id).where(
        Alert.state.in_(OPEN_ALERT_STATES), _alert_is_of_topic(notification)
    )
    newest = (
        select(func.max(Forecast.id))
        .where(Forecast.stream_id.in_(streams))
        .group_by(Forecast.stream_id)
    )
    forecasts = session.scalars(
        select(Forecast).where(Forecast.id.in_(newest), Forecast.level.in_(PAGING_LEVELS))
    )
    return min(
        forecasts,
        key=lambda forecast: (forecast.eta_step is None, forecast.eta_step or 0.0),
        default=None,
    )


def is_any_due(session: Session, channels: ChannelFilter, now: float) -> bool:
    """Return True if `lease_next` would return a notification. Takes no lock."""
    return session.scalar(_due(channels, now).limit(1)) is not None


def lease_next(
    session: Session, channels: ChannelFilter, now: float, lease_s: float
) -> Notification | None:
    """Lease the oldest due notification until `now + lease_s`; None if none is due."""
    candidates: list[Notification] = list(session.scalars(_due(channels, now).limit(10)))
    for notification in candidates:
        if _lease(session, notification, now + lease_s):
            return notification
    return None


def renew_lease(session: Session, notification: Notification, until: float) -> bool:
    """Extend a lease; return False if another dispatcher holds it."""
    return _change(session, notification, _holds_lease(notification), leased_until=until)


def mark_sent(
    session: Session, notification: Notification, receipt: dict[str, Any], now: float
) -> None:
    """Mark a notification as sent, with or without its lease."""
    _change(
        session,
        notification,
        state="sent",
        sent_at=now,
        leased_until=None,
        last_error=None,
        receipt=receipt,
    )


def mark_skipped(session: Session, notification: Notification, reason: str) -> None:
    """Mark a leased notification as skipped."""
    _change(
        session,
        notification,
        _holds_lease(notification),
        state="skipped",
        leased_until=None,
        last_error=reason,
    )


def mark_failed(
    session: Session, notification: Notification, error: str, *, next_attempt_at: float | None
) -> None:
    """Retry a leased notification at `next_attempt_at`, or mark it dead if that is None."""
    _change(
        session,
        notification,
        _holds_lease(notification),
        state="waiting" if next_attempt_at is not None else "dead",
        leased_until=None,
        last_error=error[:500],
        next_attempt_at=next_attempt_at or 0.0,
    )


def last_receipt(session: Session, notification: Notification) -> dict[str, Any]:
    """Return the channel's receipt of the newest sent notification of a topic, {} if none was
    sent.
    """
    query = (
        select(Notification.receipt)
        .where(
            _is_of_topic(notification),
            Notification.channel == notification.channel,
            Notification.state == "sent",
        )
        .order_by(Notification.id.desc())
        .limit(1)
    )
    return session.scalar(query) or {}


def is_overtaken(session: Session, notification: Notification) -> bool:
    """Return True if a later notification of the topic was already sent."""
    query = _later(notification).where(Notification.state == "sent")
    return session.scalar(query.limit(1)) is not None


def refreshable(session: Session, channel: str) -> list[Notification]:
    """Return the newest notification of each open topic of a channel, if it was sent."""
    incidents = select(Incident.id).where(Incident.state.in_(OPEN_ALERT_STATES))
    alerts = select(Alert.id).where(Alert.state.in_(OPEN_ALERT_STATES))
    without_incident = Notification.incident_id.is_(None)
    is_open = or_(
        Notification.incident_id.in_(incidents),
        and_(without_incident, Notification.alert_id.in_(alerts)),
    )
    newest = (
        select(func.max(Notification.id))
        .where(Notification.channel == channel, is_open)
        .group_by(Notification.incident_id, case((without_incident, Notification.alert_id)))
    )
    query = select(Notification).where(Notification.id.in_(newest), Notification.state == "sent")
    return list(session.scalars(query.order_by(Notification.id)))


def lease_for_refresh(
    session: Session, notification: Notification, now: float, lease_s: float
) -> bool:
    """Lease a sent notification to edit its message.

    Return False if another dispatcher holds it, or a later notification of the topic exists.
    """
    if session.scalar(_later(notification).limit(1)) is not None:
        return False
    is_free = or_(
        Notification.leased_until.is_(None), _is_over(Notification.leased_until, now, MAX_LEASE_S)
    )
    return _change(
        session, notification, Notification.state == "sent", is_free, leased_until=now + lease_s
    )


def end_refresh(session: Session, notification: Notification, receipt: dict[str, Any]) -> None:
    """Release the lease of a refresh and store its receipt."""
    is_sent = Notification.state == "sent"
    _change(session, notification, is_sent, leased_until=None, receipt=receipt)


def retry(session: Session, notification_id: int, now: float) -> bool | None:
    """Send a dead or skipped notification again, with a new count of attempts.

    Return False if it's neither dead nor skipped, None if it doesn't exist.
    """
    if session.scalar(select(Notification.id).where(Notification.id == notification_id)) is None:
        return None
    result = session.execute(
        update(Notification)
        .where(Notification.id == notification_id, Notification.state.in_(("dead", "skipped")))
        .values(state="waiting", attempts=0, next_attempt_at=now, leased_until=None)
    )
    assert isinstance(result, CursorResult)
    return bool(result.rowcount)


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
        select(Notification, Transition, Alert, Run.name)
        .join(Transition, Transition.id == Notification.transition_id)
        .join(Alert, Alert.id == Notification.alert_id)
        .join(Run, Run.id == Alert.run_id)
        .order_by(Notification.id.desc())
        .limit(limit + 1)
    )
    if state is not None:
        query = query.where(Notification.state == state)
    if channel is not None:
        query = query.where(Notification.channel == channel)
    if run_id is not None:
        query = query.where(Alert.run_id == run_id)
    if (before := id_before(cursor)) is not None:
        query = query.where(Notification.id < before)
    rows = session.execute(query).all()
    page = [_describe(*row) for row in rows[:limit]]
    return schemas.NotificationPage(page, str(page[-1].id) if len(rows) > limit else None)


def count_by_outcome(session: Session) -> dict[tuple[str, str], int]:
    """Return {(channel, state): notifications}."""
    query = select(Notification.channel, Notification.state, func.count()).group_by(
        Notification.channel, Notification.state
    )
    return {(channel, state): count for channel, state, count in session.execute(query)}


def _describe(
    notification: Notification, transition: Transition, alert: Alert, run_name: str
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
    if notification.state in _UNSENT:
        return described
    return msgspec.structs.replace(described, next_attempt_at=None)


def _due(channels: ChannelFilter, now: float) -> Select[Any]:
    """Select the notifications that may be leased, the oldest first."""
    earlier = aliased(Notification)
    is_blocked = (
        select(earlier.id)
        .where(
            or_(
                earlier.incident_id == Notification.incident_id,
                and_(
                    earlier.incident_id.is_(None),
                    Notification.incident_id.is_(None),
                    earlier.alert_id == Notification.alert_id,
                ),
            ),
            earlier.channel == Notification.channel,
            earlier.id < Notification.id,
            or_(earlier.state.in_(_UNSENT), ~_is_over(earlier.leased_until, now, MAX_LEASE_S)),
        )
        .exists()
    )
    is_due = or_(
        and_(
            Notification.state == "waiting", _is_over(Notification.next_attempt_at, now, MAX_WAIT_S)
        ),
        and_(Notification.state == "leased", _is_over(Notification.leased_until, now, MAX_LEASE_S)),
    )
    query = select(Notification).where(channels.condition(), is_due, ~is_blocked)
    return query.order_by(Notification.id)


def _is_over(until: Any, now: float, max_s: float) -> ColumnElement[bool]:
    return or_(until <= now, until > now + max_s)


def _later(notification: Notification) -> Select[Any]:
    return select(Notification.id).where(
        _is_of_topic(notification),
        Notification.channel == notification.channel,
        Notification.id > notification.id,
    )


def _is_of_topic(notification: Notification) -> ColumnElement[bool]:
    if notification.incident_id is not None:
        return Notification.incident_id == notification.incident_id
    return and_(Notification.incident_id.is_(None), Notification.alert_id == notification.alert_id)


def _alert_is_of_topic(notification: Notification) -> ColumnElement[bool]:
    if notification.incident_id is not None:
        return Alert.incident_id == notification.incident_id
    return Alert.id == notification.alert_id


def _holds_lease(notification: Notification) -> ColumnElement[bool]:
    """Build the condition that a lease is still the one read: each lease adds one attempt."""
    return and_(Notification.state == "leased", Notification.attempts == notification.attempts)


def _lease(session: Session, notification: Notification, until: float) -> bool:
    is_unchanged = and_(
        Notification.state == notification.state, Notification.attempts == notification.attempts
    )
    is_leased = _change(
        session,
        notification,
        is_unchanged,
        state="leased",
        leased_until=until,
        attempts=notification.attempts + 1,
    )
    if is_leased:
        session.refresh(notification)
    return is_leased


def _change(
    session: Session, notification: Notification, *conditions: ColumnElement[bool], **values: Any
) -> bool:
    """Change a notification if all conditions hold; return True if changed."""
    result = session.execute(
        update(Notification)
        .where(Notification.id == notification.id, *conditions)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
