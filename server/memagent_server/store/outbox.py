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
7. A notification in the quiet hours of its channel is held until they end.
8. Due notifications of a project, rule, state and severity can be leased together, for one message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, Select, and_, case, func, or_, select, update
from sqlalchemy.orm import Session

from memagent_server.schemas.base import JsonObject
from memagent_server.store.due_notifications import (
    MAX_LEASE_S,
    ChannelFilter,
    due_notifications,
    is_over,
)
from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    AlertRow,
    IncidentRow,
    NotificationRow,
    RunRow,
    TransitionRow,
)
from memagent_server.store.statements import insert_if_missing

_FOLLOW_UP = ":suspect"
MAX_ATTEMPTS = 20
MAX_FOLDED = 1_000
"""Notifications in one message."""


@dataclass(frozen=True)
class NotificationKind:
    """What notifications that go out in one message have in common."""

    project: str
    rule: str
    to_state: str
    severity: str


def lease_next(
    session: Session, channels: ChannelFilter, now: float, lease_s: float
) -> NotificationRow | None:
    """Lease the oldest due notification until `now + lease_s`; None if none is due."""
    # a few, since other dispatchers may lease the first ones meanwhile
    candidates: list[NotificationRow] = list(
        session.scalars(due_notifications(channels, now).limit(10))
    )
    for notification in candidates:
        if _lease(session, notification, now + lease_s):
            return notification
    return None


def lease_alike(
    session: Session,
    channels: ChannelFilter,
    notification: NotificationRow,
    now: float,
    lease_s: float,
) -> list[NotificationRow]:
    """Lease the due notifications that can go out in one message with a leased one."""
    kind = kind_of_notification(session, notification)
    query = (
        due_notifications(channels, now)
        .join(AlertRow, AlertRow.id == NotificationRow.alert_id)
        .join(TransitionRow, TransitionRow.id == NotificationRow.transition_id)
        .join(RunRow, RunRow.id == AlertRow.run_id)
        .where(
            NotificationRow.id != notification.id,
            NotificationRow.channel == notification.channel,
            RunRow.project == kind.project,
            AlertRow.rule == kind.rule,
            TransitionRow.to_state == kind.to_state,
            TransitionRow.severity == kind.severity,
        )
        .limit(MAX_FOLDED - 1)
    )
    candidates = list(session.scalars(query))
    return [item for item in candidates if _lease(session, item, now + lease_s)]


def kind_of_notification(session: Session, notification: NotificationRow) -> NotificationKind:
    query = (
        select(RunRow.project, AlertRow.rule, TransitionRow.to_state, TransitionRow.severity)
        .join(AlertRow, AlertRow.run_id == RunRow.id)
        .join(TransitionRow, TransitionRow.alert_id == AlertRow.id)
        .where(TransitionRow.id == notification.transition_id)
    )
    return NotificationKind(*session.execute(query).one())


def defer(session: Session, notification: NotificationRow, until: float) -> None:
    """Give a lease back unused; the notification is due again at `until`."""
    _change(
        session,
        notification,
        _holds_lease(notification),
        state="waiting",
        leased_until=None,
        attempts=notification.attempts - 1,
        next_attempt_at=until,
    )


def renew_lease(session: Session, notification: NotificationRow, until: float) -> bool:
    """Extend a lease; return False if another dispatcher holds it."""
    return _change(session, notification, _holds_lease(notification), leased_until=until)


def mark_sent(
    session: Session, notification: NotificationRow, receipt: JsonObject, now: float
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


def mark_skipped(session: Session, notification: NotificationRow, reason: str) -> None:
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
    session: Session, notification: NotificationRow, error: str, *, next_attempt_at: float | None
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


def last_receipt(session: Session, notification: NotificationRow) -> JsonObject:
    """Return the channel's receipt of a topic's newest sent notification, or {}."""
    newest = newest_sent(session, notification)
    return newest.receipt if newest is not None else {}


def notification_of(session: Session, dedup_key: str) -> NotificationRow | None:
    """Return the notification with a dedup key, or None."""
    return session.scalar(select(NotificationRow).where(NotificationRow.dedup_key == dedup_key))


def newest_sent(session: Session, notification: NotificationRow) -> NotificationRow | None:
    """Return the newest notification that was sent about a topic to the same channel."""
    query = (
        select(NotificationRow)
        .where(
            _is_of_topic(notification),
            NotificationRow.channel == notification.channel,
            NotificationRow.state == "sent",
        )
        .order_by(NotificationRow.id.desc())
        .limit(1)
    )
    return session.scalar(query)


def is_overtaken(session: Session, notification: NotificationRow) -> bool:
    """Return True if a later notification of the topic was already sent."""
    query = _later(notification).where(NotificationRow.state == "sent")
    return session.scalar(query.limit(1)) is not None


def refreshable(session: Session, channel: str) -> list[NotificationRow]:
    """Return the newest notification of each open topic of a channel, if it was sent."""
    incidents = select(IncidentRow.id).where(IncidentRow.state.in_(OPEN_ALERT_STATES))
    alerts = select(AlertRow.id).where(AlertRow.state.in_(OPEN_ALERT_STATES))
    without_incident = NotificationRow.incident_id.is_(None)
    is_open = or_(
        NotificationRow.incident_id.in_(incidents),
        and_(without_incident, NotificationRow.alert_id.in_(alerts)),
    )
    newest = (
        select(func.max(NotificationRow.id))
        .where(NotificationRow.channel == channel, is_open)
        .group_by(NotificationRow.incident_id, case((without_incident, NotificationRow.alert_id)))
    )
    query = select(NotificationRow).where(
        NotificationRow.id.in_(newest), NotificationRow.state == "sent"
    )
    return list(session.scalars(query.order_by(NotificationRow.id)))


def add_follow_up(
    session: Session, notification: NotificationRow, now: float, held_until: float | None = None
) -> None:
    """Queue a second message about a sent notification, once; `held_until` as in `notify`."""
    values: JsonObject = {
        "alert_id": notification.alert_id,
        "transition_id": notification.transition_id,
        "incident_id": notification.incident_id,
        "channel": notification.channel,
        "dedup_key": f"{notification.dedup_key}{_FOLLOW_UP}",
        "state": "waiting",
        "attempts": 0,
        "created_at": now,
        "next_attempt_at": now,
        "held_until": held_until,
        "receipt": {},
    }
    insert_if_missing(session, NotificationRow, values)


def is_follow_up(notification: NotificationRow) -> bool:
    return notification.dedup_key.endswith(_FOLLOW_UP)


def lease_for_refresh(
    session: Session, notification: NotificationRow, now: float, lease_s: float
) -> bool:
    """Lease a sent notification to edit its message.

    Return False if another dispatcher holds it, or a later notification of the topic exists.
    """
    if session.scalar(_later(notification).limit(1)) is not None:
        return False
    is_free = or_(
        NotificationRow.leased_until.is_(None),
        is_over(NotificationRow.leased_until, now, MAX_LEASE_S),
    )
    return _change(
        session, notification, NotificationRow.state == "sent", is_free, leased_until=now + lease_s
    )


def end_refresh(session: Session, notification: NotificationRow, receipt: JsonObject) -> None:
    """Release the lease of a refresh and store its receipt."""
    is_sent = NotificationRow.state == "sent"
    _change(session, notification, is_sent, leased_until=None, receipt=receipt)


def _later(notification: NotificationRow) -> Select[Any]:
    return select(NotificationRow.id).where(
        _is_of_topic(notification),
        NotificationRow.channel == notification.channel,
        NotificationRow.id > notification.id,
    )


def _is_of_topic(notification: NotificationRow) -> ColumnElement[bool]:
    if notification.incident_id is not None:
        return NotificationRow.incident_id == notification.incident_id
    return and_(
        NotificationRow.incident_id.is_(None), NotificationRow.alert_id == notification.alert_id
    )


def _holds_lease(notification: NotificationRow) -> ColumnElement[bool]:
    """Build the condition that a lease is still the one read: each lease adds one attempt."""
    return and_(
        NotificationRow.state == "leased", NotificationRow.attempts == notification.attempts
    )


def _lease(session: Session, notification: NotificationRow, until: float) -> bool:
    is_unchanged = and_(
        NotificationRow.state == notification.state,
        NotificationRow.attempts == notification.attempts,
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
        # the update went past the session's object
        session.refresh(notification)
    return is_leased


def _change(
    session: Session, notification: NotificationRow, *conditions: ColumnElement[bool], **values: Any
) -> bool:
    """Change a notification if all conditions hold; return True if changed."""
    result = session.execute(
        update(NotificationRow)
        .where(NotificationRow.id == notification.id, *conditions)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
