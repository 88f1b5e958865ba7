"""The outbox: notifications wait here until their channel has taken them.

1. A notification is written in the transaction of the transition that causes it.
2. A dispatcher leases what is due, sends, then marks it sent: a crash in between sends it again, and never loses it.
3. A lease that has run out is as good as none.
4. For each alert and channel only the oldest unsent notification is leased: order is kept.
5. A failed one waits, longer each time; after MOST_ATTEMPTS, or when the channel says never, it is dead, and visible as such.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CursorResult, and_, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from memagent_server.store.models import Notification

MOST_ATTEMPTS = 20
_UNSENT = ("waiting", "leased")


def lease_due(session: Session, now: float, lease_s: float, limit: int = 10) -> list[Notification]:
    """Due notifications, now leased to the caller until `now + lease_s`, oldest first."""
    earlier = aliased(Notification)
    blocked = (
        select(earlier.id)
        .where(
            earlier.alert_id == Notification.alert_id,
            earlier.channel == Notification.channel,
            earlier.id < Notification.id,
            earlier.state.in_(_UNSENT),
        )
        .exists()
    )
    due = or_(
        and_(Notification.state == "waiting", Notification.next_attempt_at <= now),
        and_(Notification.state == "leased", Notification.leased_until <= now),
    )
    found = session.scalars(select(Notification).where(due, ~blocked).order_by(Notification.id).limit(limit)).all()
    return [item for item in found if _take(session, item, now + lease_s)]


def mark_sent(session: Session, notification_id: int, receipt: dict[str, Any], now: float) -> None:
    session.execute(
        update(Notification)
        .where(Notification.id == notification_id)
        .values(state="sent", sent_at=now, leased_until=None, last_error=None, receipt=receipt)
    )


def mark_failed(session: Session, notification_id: int, error: str, *, next_attempt_at: float | None) -> None:
    """Try again at `next_attempt_at`, or never where that is None. What another dispatcher has sent meanwhile stays sent."""
    state = "waiting" if next_attempt_at is not None else "dead"
    session.execute(
        update(Notification)
        .where(Notification.id == notification_id, Notification.state != "sent")
        .values(state=state, leased_until=None, last_error=error[:500], next_attempt_at=next_attempt_at or 0.0)
    )


def last_receipt(session: Session, alert_id: int, channel: str) -> dict[str, Any]:
    """What the channel answered to the alert's newest sent notification, {} where nothing was sent yet."""
    query = (
        select(Notification.receipt)
        .where(Notification.alert_id == alert_id, Notification.channel == channel, Notification.state == "sent")
        .order_by(Notification.id.desc())
        .limit(1)
    )
    return session.scalar(query) or {}


def count_by_outcome(session: Session) -> dict[tuple[str, str], int]:
    """{(channel, state): notifications}, for the server's own metrics."""
    query = select(Notification.channel, Notification.state, func.count()).group_by(
        Notification.channel, Notification.state
    )
    return {(channel, state): count for channel, state, count in session.execute(query)}


def _take(session: Session, item: Notification, until: float) -> bool:
    result = session.execute(
        update(Notification)
        .where(Notification.id == item.id, Notification.state == item.state, Notification.attempts == item.attempts)
        .values(state="leased", leased_until=until, attempts=item.attempts + 1)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    if result.rowcount != 1:
        return False
    session.refresh(item)
    return True
