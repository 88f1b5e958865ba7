"""Due notifications of the outbox, those that a dispatcher may lease now."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, and_, bindparam, or_, select, true
from sqlalchemy.orm import Session, aliased

from memagent_server.store.models import NotificationRow
from memagent_server.store.notifications import UNSENT
from memagent_server.store.statements import CompiledSelect

MAX_LEASE_S = 60.0
MAX_HOLD_S = 26 * 3_600.0
"""The longest quiet hours, on a day with a change of clocks."""
MAX_WAIT_S = 3_600.0
"""A lease or delay that ends later than these allow was set before the clock went back: it's
over.
"""


@dataclass(frozen=True)
class ChannelFilter:
    """The notifications of one channel, or with no `channel` those of all channels but `others`."""

    channel: str | None
    others: tuple[str, ...] = ()

    def condition(self) -> ColumnElement[bool]:
        if self.channel is not None:
            return NotificationRow.channel == self.channel
        return and_(true(), *(NotificationRow.channel != name for name in self.others))


def is_any_due(session: Session, channels: ChannelFilter, now: float) -> bool:
    """Return True if `lease_next` would return a notification. Takes no lock."""
    return bool(_any_due(channels).rows(session.connection(), {"now": now}))


@cache
def _any_due(channels: ChannelFilter) -> CompiledSelect:
    """Return a statement, made once: each channel asks three times a second."""
    due = due_notifications(channels, bindparam("now", type_=Float))
    return CompiledSelect(due.with_only_columns(NotificationRow.id).limit(1))


def due_notifications(channels: ChannelFilter, now: float | ColumnElement[float]) -> Select[Any]:
    """Select the notifications that may be leased, the oldest first."""
    earlier = aliased(NotificationRow)
    is_blocked = (
        select(earlier.id)
        .where(
            or_(
                earlier.incident_id == NotificationRow.incident_id,
                and_(
                    earlier.incident_id.is_(None),
                    NotificationRow.incident_id.is_(None),
                    earlier.alert_id == NotificationRow.alert_id,
                ),
            ),
            earlier.channel == NotificationRow.channel,
            earlier.id < NotificationRow.id,
            or_(
                *(earlier.state == state for state in UNSENT),
                ~is_over(earlier.leased_until, now, MAX_LEASE_S),
            ),
        )
        .exists()
    )
    is_due = or_(
        and_(
            NotificationRow.state == "waiting",
            or_(
                # it has never had to wait: due even if the clock went back since then
                NotificationRow.next_attempt_at == NotificationRow.created_at,
                is_over(NotificationRow.next_attempt_at, now, MAX_WAIT_S),
            ),
        ),
        and_(
            NotificationRow.state == "leased",
            is_over(NotificationRow.leased_until, now, MAX_LEASE_S),
        ),
    )
    is_released = or_(
        NotificationRow.held_until.is_(None), is_over(NotificationRow.held_until, now, MAX_HOLD_S)
    )
    query = select(NotificationRow).where(channels.condition(), is_due, is_released, ~is_blocked)
    return query.order_by(NotificationRow.id)


def is_over(until: Any, now: float | ColumnElement[float], max_s: float) -> ColumnElement[bool]:
    """Build the condition that a time has come, or was set before the clock went back."""
    return or_(until <= now, until > now + max_s)
