"""Events: what an agent reports once, such as a checkpoint, a hint or an OOM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.runs import EventPage, RunEvent
from memagent_server.store.models import EventRow, RankRow
from memagent_server.store.reading import newest_page, text_keys, to_schema

MAX_PENDING = 1_000
"""Events of a run that a turn takes: as many as one batch has at most."""
EventFields = tuple[str, int, str, int, int, JsonObject]


def list_events(
    session: Session, run_id: str, *, kind: str | None = None, limit: int, cursor: str | None = None
) -> EventPage:
    """Return a page of a run's events, the newest first. Raises WireError for a bad cursor."""
    conditions = [EventRow.run_id == run_id, *([] if kind is None else [EventRow.kind == kind])]
    rows, next_cursor = newest_page(session, EventRow, *conditions, limit=limit, cursor=cursor)
    return EventPage(run_id, [to_schema(RunEvent, row) for row in rows], next_cursor)


def events_after(session: Session, last_ids: Mapping[str, int]) -> Iterable[EventFields]:
    """Return (run, id, kind, rank, attempt, data) of runs' events after the given ids, by id."""
    keys = text_keys(session, last_ids.items())
    query = (
        select(
            EventRow.run_id,
            EventRow.id,
            EventRow.kind,
            EventRow.rank,
            EventRow.attempt,
            EventRow.data,
        )
        .select_from(keys)
        .join(EventRow, (EventRow.run_id == keys.c.first) & (EventRow.id > keys.c.second))
    )
    return session.execute(query.order_by(EventRow.id))


def runs_with_pending_events(session: Session) -> list[str]:
    """Return the ids of runs with events that no alert was made of yet."""
    query = select(EventRow.run_id).where(EventRow.is_pending).distinct().limit(MAX_PENDING)
    return list(session.scalars(query))


def pending_events(session: Session, run_id: str) -> list[EventRow]:
    """Return the oldest MAX_PENDING of a run's events that no alert was made of yet."""
    query = select(EventRow).where(EventRow.run_id == run_id, EventRow.is_pending)
    return list(session.scalars(query.order_by(EventRow.id).limit(MAX_PENDING)))


def take_events(session: Session, run_id: str, event_ids: Sequence[int]) -> None:
    """Mark events as done. The run's row must be locked."""
    if event_ids:
        session.execute(
            update(EventRow)
            .where(EventRow.run_id == run_id, EventRow.id.in_(event_ids))
            .values(is_pending=False)
        )


def oom_events(session: Session, run_id: str) -> list[EventRow]:
    """Return the `oom` events of the newest launch, the oldest first."""
    query = (
        select(EventRow)
        .join(
            RankRow,
            (RankRow.run_id == EventRow.run_id)
            & (RankRow.rank == EventRow.rank)
            & (RankRow.attempt == EventRow.attempt),
        )
        .where(EventRow.run_id == run_id, EventRow.kind == "oom", RankRow.is_current)
        .order_by(EventRow.id)
    )
    return list(session.scalars(query))


def last_checkpoint_step(session: Session, run_id: str, step: int) -> int | None:
    """Return the step of the newest checkpoint event up to `step`."""
    query = select(EventRow.step).where(
        EventRow.run_id == run_id, EventRow.kind == "checkpoint", EventRow.step <= step
    )
    return session.scalar(query.order_by(EventRow.id.desc()).limit(1))
