"""The outbox: notifications wait here until their channel has taken them.

1. A notification is written in the transaction of the transition that causes it.
2. A dispatcher leases the oldest that is due, sends it, then marks it sent: a crash in between sends it again, and never loses it.
3. A lease that has run out is as good as none. What a dispatcher says of a lease that it no longer has is not believed, but for
   one thing: sent is sent.
4. A topic is an incident, or an alert that belongs to none. For each topic and channel only the oldest unsent notification is leased:
   order is kept. A refresh (an edit of what was sent) holds a lease on the notification that it edits, and later ones wait for it.
5. A failed one waits, longer each time; after MOST_ATTEMPTS, or when the channel says never, it is dead, and visible as such.
   People can have a dead one sent again.
6. What a channel does not want to hear is skipped, and visible as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, case, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from memagent_server.store.models import (
    OPEN_ALERT_STATES,
    Alert,
    Incident,
    Notification,
    Run,
    Transition,
)
from memagent_server.store.paging import position
from memagent_server.store.timestamps import iso

MOST_ATTEMPTS = 20
LONGEST_LEASE_S, LONGEST_WAIT_S = 60.0, 3_600.0
"""A lease that is said to last longer, or a wait, was given before the clock was set back: it is over."""
_UNSENT = ("waiting", "leased")


@dataclass(frozen=True)
class Route:
    """Which notifications a dispatcher takes: those of one channel, or with no `channel` those of none in `apart_from`."""

    channel: str | None
    apart_from: tuple[str, ...] = ()

    def matches(self) -> ColumnElement[bool]:
        if self.channel is not None:
            return Notification.channel == self.channel
        return Notification.channel.not_in(self.apart_from)


def topic_of(item: Notification) -> str:
    """What a notification is a chapter of, in a word."""
    return f"alert-{item.alert_id}" if item.incident_id is None else f"incident-{item.incident_id}"


def is_any_due(session: Session, route: Route, now: float) -> bool:
    """Whether `lease_next` would find something: a question that holds no lock."""
    return session.scalar(_due(route, now).limit(1)) is not None


def lease_next(session: Session, route: Route, now: float, lease_s: float) -> Notification | None:
    """The oldest due notification, now leased to the caller until `now + lease_s`; None where nothing is due."""
    found: list[Notification] = list(session.scalars(_due(route, now).limit(10)))
    for item in found:
        if _take(session, item, now + lease_s):
            return item
    return None


def renew_lease(session: Session, item: Notification, until: float) -> bool:
    """Keep a lease that is still held; False where it is somebody else's by now."""
    return _change(session, item, (_is_held(item),), leased_until=until)


def mark_sent(session: Session, item: Notification, receipt: dict[str, Any], now: float) -> None:
    changes = {
        "state": "sent",
        "sent_at": now,
        "leased_until": None,
        "last_error": None,
        "receipt": receipt,
    }
    _change(session, item, (), **changes)


def mark_skipped(session: Session, item: Notification, reason: str) -> None:
    _change(session, item, (_is_held(item),), state="skipped", leased_until=None, last_error=reason)


def mark_failed(
    session: Session, item: Notification, error: str, *, next_attempt_at: float | None
) -> None:
    """Try again at `next_attempt_at`, or never where that is None."""
    state = "waiting" if next_attempt_at is not None else "dead"
    changes = {"last_error": error[:500], "next_attempt_at": next_attempt_at or 0.0}
    _change(session, item, (_is_held(item),), state=state, leased_until=None, **changes)


def last_receipt(session: Session, item: Notification) -> dict[str, Any]:
    """What the channel answered to the newest sent notification of the same topic, {} where nothing was sent yet."""
    query = (
        select(Notification.receipt)
        .where(
            _is_of_topic(item), Notification.channel == item.channel, Notification.state == "sent"
        )
        .order_by(Notification.id.desc())
        .limit(1)
    )
    return session.scalar(query) or {}


def is_overtaken(session: Session, item: Notification) -> bool:
    """Whether the channel was told a later chapter of its topic already."""
    return session.scalar(_later(item).where(Notification.state == "sent").limit(1)) is not None


def open_chapters(session: Session, channel: str) -> list[Notification]:
    """The newest notification of each topic of this channel, where it was sent and its topic is open."""
    incidents = select(Incident.id).where(Incident.state.in_(OPEN_ALERT_STATES))
    alerts = select(Alert.id).where(Alert.state.in_(OPEN_ALERT_STATES))
    is_loose = Notification.incident_id.is_(None)
    is_open = or_(
        Notification.incident_id.in_(incidents), and_(is_loose, Notification.alert_id.in_(alerts))
    )
    newest = (
        select(func.max(Notification.id))
        .where(Notification.channel == channel, is_open)
        .group_by(Notification.incident_id, case((is_loose, Notification.alert_id)))
    )
    query = select(Notification).where(Notification.id.in_(newest), Notification.state == "sent")
    return list(session.scalars(query.order_by(Notification.id)))


def lease_for_refresh(session: Session, item: Notification, now: float, lease_s: float) -> bool:
    """Hold a sent notification while its message is edited; False where another has it, or a later chapter has come."""
    if session.scalar(_later(item).limit(1)) is not None:
        return False
    is_free = or_(
        Notification.leased_until.is_(None),
        _is_over(Notification.leased_until, now, LONGEST_LEASE_S),
    )
    return _change(
        session, item, (Notification.state == "sent", is_free), leased_until=now + lease_s
    )


def end_refresh(session: Session, item: Notification, receipt: dict[str, Any]) -> None:
    _change(session, item, (Notification.state == "sent",), leased_until=None, receipt=receipt)


def send_again(session: Session, notification_id: int, now: float) -> bool | None:
    """Have a dead or skipped notification sent again, with a fresh count of attempts; False where it is neither, None where it is not."""
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
) -> dict[str, Any]:
    """The answer of GET /notifications, newest first; `cursor` is what the answer before gave. Raises WireError for another."""
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
    if (before := position(cursor)) is not None:
        query = query.where(Notification.id < before)
    found = session.execute(query).all()
    page = [_describe(*row) for row in found[:limit]]
    return {
        "notifications": page,
        "next_cursor": str(page[-1]["id"]) if len(found) > limit else None,
    }


def count_by_outcome(session: Session) -> dict[tuple[str, str], int]:
    """{(channel, state): notifications}, for the server's own metrics."""
    query = select(Notification.channel, Notification.state, func.count()).group_by(
        Notification.channel, Notification.state
    )
    return {(channel, state): count for channel, state, count in session.execute(query)}


def _describe(
    item: Notification, transition: Transition, alert: Alert, run_name: str
) -> dict[str, Any]:
    return {
        "id": item.id,
        "channel": item.channel,
        "state": item.state,
        "attempts": item.attempts,
        "created_at": iso(item.created_at),
        "next_attempt_at": iso(item.next_attempt_at) if item.state in _UNSENT else None,
        "sent_at": iso(item.sent_at),
        "last_error": item.last_error,
        "incident_id": item.incident_id,
        "alert_id": alert.id,
        "run_id": alert.run_id,
        "run_name": run_name,
        "rule": alert.rule,
        "severity": transition.severity,
        "to_state": transition.to_state,
    }


def _due(route: Route, now: float) -> Any:
    """Notifications that may be leased, oldest first."""
    earlier = aliased(Notification)
    blocked = (
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
            or_(earlier.state.in_(_UNSENT), ~_is_over(earlier.leased_until, now, LONGEST_LEASE_S)),
        )
        .exists()
    )
    due = or_(
        and_(
            Notification.state == "waiting",
            _is_over(Notification.next_attempt_at, now, LONGEST_WAIT_S),
        ),
        and_(
            Notification.state == "leased",
            _is_over(Notification.leased_until, now, LONGEST_LEASE_S),
        ),
    )
    return select(Notification).where(route.matches(), due, ~blocked).order_by(Notification.id)


def _is_over(until: Any, now: float, longest_s: float) -> ColumnElement[bool]:
    return or_(until <= now, until > now + longest_s)


def _later(item: Notification) -> Any:
    return select(Notification.id).where(
        _is_of_topic(item), Notification.channel == item.channel, Notification.id > item.id
    )


def _is_of_topic(item: Notification) -> ColumnElement[bool]:
    if item.incident_id is not None:
        return Notification.incident_id == item.incident_id
    return and_(Notification.incident_id.is_(None), Notification.alert_id == item.alert_id)


def _is_held(item: Notification) -> ColumnElement[bool]:
    """Whether the lease is still the one that `item` was taken with: each lease counts one more attempt."""
    return and_(Notification.state == "leased", Notification.attempts == item.attempts)


def _take(session: Session, item: Notification, until: float) -> bool:
    is_as_seen = (Notification.state == item.state, Notification.attempts == item.attempts)
    if not _change(
        session, item, is_as_seen, state="leased", leased_until=until, attempts=item.attempts + 1
    ):
        return False
    session.refresh(item)
    return True


def _change(
    session: Session, item: Notification, when: tuple[ColumnElement[bool], ...], **values: Any
) -> bool:
    """Change a notification where `when` holds; whether it did."""
    result = session.execute(
        update(Notification)
        .where(Notification.id == item.id, *when)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
