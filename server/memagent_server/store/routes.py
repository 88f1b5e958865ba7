"""The routes of notifications, and what they are applied to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from memagent_server.schemas.routing import Route
from memagent_server.store.models import AlertRow, NotificationRow, RouteRow, RunRow, TransitionRow

_FIELDS = tuple(Route.__struct_fields__)


def list_routes(session: Session) -> list[Route]:
    """Return all routes in their order."""
    rows = session.scalars(select(RouteRow).order_by(RouteRow.position))
    return [msgspec.convert({name: getattr(row, name) for name in _FIELDS}, Route) for row in rows]


def lock_routes(session: Session) -> None:
    """Make other changes of the routes wait for this transaction; SQLite does it by itself."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("LOCK TABLE routes IN SHARE ROW EXCLUSIVE MODE"))


def replace_routes(session: Session, routes: Sequence[Route]) -> None:
    """Store all routes in place of those before. Their names must differ."""
    lock_routes(session)
    # positions are dense, so a change of one may move all that follow
    session.execute(delete(RouteRow))
    for position, route in enumerate(routes):
        session.add(RouteRow(position=position, **msgspec.to_builtins(route)))
    session.flush()


def channels_told(session: Session, incident_id: int) -> set[str]:
    """Return the channels that were notified of an incident, or will be."""
    query = select(NotificationRow.channel).where(NotificationRow.incident_id == incident_id)
    return set(session.scalars(query.distinct()))


def sent_since(
    session: Session, since: float, limit: int
) -> list[tuple[TransitionRow, AlertRow, RunRow, tuple[str, ...]]]:
    """Return the newest `limit` transitions that notified, oldest first, with their channels."""
    newest = (
        select(NotificationRow.transition_id)
        .where(NotificationRow.created_at >= since)
        .group_by(NotificationRow.transition_id)
        .order_by(NotificationRow.transition_id.desc())
        .limit(limit)
    )
    ids = list(session.scalars(newest))
    # read apart, since a join would repeat run and alert for each channel
    channels: dict[int, list[str]] = {}
    of_transition = select(NotificationRow.transition_id, NotificationRow.channel)
    for transition_id, channel in session.execute(
        of_transition.where(NotificationRow.transition_id.in_(newest)).order_by(NotificationRow.id)
    ):
        channels.setdefault(transition_id, []).append(channel)
    rows = session.execute(
        select(TransitionRow, AlertRow, RunRow)
        .join(AlertRow, AlertRow.id == TransitionRow.alert_id)
        .join(RunRow, RunRow.id == AlertRow.run_id)
        .where(TransitionRow.id.in_(newest))
        .order_by(TransitionRow.id)
    )
    return [(*row, tuple(channels.get(row[0].id, ()))) for row in rows] if ids else []
