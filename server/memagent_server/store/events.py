"""Events: what happened once in a run, as its agent told it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from memagent_server.store.models import Event
from memagent_server.store.paging import newest
from memagent_server.store.timestamps import iso


def list_events(
    session: Session, run_id: str, *, kind: str | None = None, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of a run's events in the shape of docs/http.md, the newest first, and the cursor of the next page."""
    which = [Event.run_id == run_id, *([] if kind is None else [Event.kind == kind])]
    page, next_cursor = newest(session, Event, *which, limit=limit, cursor=cursor)
    return [_describe(event) for event in page], next_cursor


def _describe(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "rank": event.rank,
        "step": event.step,
        "at": iso(event.at),
        "data": event.data,
    }
