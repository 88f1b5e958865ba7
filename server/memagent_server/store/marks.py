"""How far the alerts of streams have been decided, and the states they were in then: read and written for many streams at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent_server.store.models import WatchMark
from memagent_server.store.upsert import upsert_all
from memagent_server.store.wanted import numbers


class Mark(NamedTuple):
    """See `models.WatchMark`."""

    stream_id: int
    seq: int
    states: dict[str, Any]


def get_marks(session: Session, stream_ids: Collection[int]) -> dict[int, Mark]:
    """By stream; those that were never decided on are missing."""
    wanted = numbers(session, stream_ids)
    query = select(WatchMark.stream_id, WatchMark.seq, WatchMark.states).select_from(wanted)
    found = session.execute(query.join(WatchMark, WatchMark.stream_id == wanted.c.first))
    return {row.stream_id: Mark._make(row) for row in found}


def put_marks(session: Session, marks: Sequence[Mark]) -> None:
    """Keep how far streams have been decided. The runs' rows must be locked."""
    upsert_all(session, WatchMark, [mark._asdict() for mark in marks], update=("seq", "states"))
