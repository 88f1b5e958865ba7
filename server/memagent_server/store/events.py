"""Events: what an agent reports once, such as a checkpoint, a hint or an OOM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent_server.schemas.runs import EventPage, RunEvent
from memagent_server.store.models import Event, Rank
from memagent_server.store.reading import newest_page, text_keys, to_schema

EventRow = tuple[str, int, str, int, int, dict[str, Any]]


def list_events(
    session: Session, run_id: str, *, kind: str | None = None, limit: int, cursor: str | None = None
) -> EventPage:
    """Return a page of a run's events, the newest first. Raises WireError for a bad cursor."""
    conditions = [Event.run_id == run_id, *([] if kind is None else [Event.kind == kind])]
    rows, next_cursor = newest_page(session, Event, *conditions, limit=limit, cursor=cursor)
    return EventPage(run_id, [to_schema(RunEvent, row) for row in rows], next_cursor)


def events_after(session: Session, last_ids: Mapping[str, int]) -> Iterable[EventRow]:
    """Return (run, id, kind, rank, attempt, data) of each run's events after the given id, by
    id.
    """
    keys = text_keys(session, last_ids.items())
    query = (
        select(Event.run_id, Event.id, Event.kind, Event.rank, Event.attempt, Event.data)
        .select_from(keys)
        .join(Event, (Event.run_id == keys.c.first) & (Event.id > keys.c.second))
    )
    return session.execute(query.order_by(Event.id))


def oom_events(session: Session, run_id: str) -> list[Event]:
    """Return the `oom` events of the newest launch, the oldest first."""
    query = (
        select(Event)
        .join(
            Rank,
            (Rank.run_id == Event.run_id)
            & (Rank.rank == Event.rank)
            & (Rank.attempt == Event.attempt),
        )
        .where(Event.run_id == run_id, Event.kind == "oom", Rank.is_current)
        .order_by(Event.id)
    )
    return list(session.scalars(query))


def last_checkpoint_step(session: Session, run_id: str, step: int) -> int | None:
    """Return the step of the newest checkpoint event up to `step`."""
    query = select(Event.step).where(
        Event.run_id == run_id, Event.kind == "checkpoint", Event.step <= step
    )
    return session.scalar(query.order_by(Event.id.desc()).limit(1))
