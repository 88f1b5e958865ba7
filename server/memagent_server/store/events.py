"""Events: what an agent reports once, such as a checkpoint, a hint or an OOM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.runs import EventPage, RunEvent
from memagent_server.store.models import EventRow, RankRow
from memagent_server.store.reading import newest_page, text_keys, to_schema

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
