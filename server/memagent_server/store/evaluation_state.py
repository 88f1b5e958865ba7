"""How far the alerts of streams have been decided, the states they were in then, and what their forecasters remember.

All of it is read and written for many streams at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from memagent_server.store.key_lists import numbers
from memagent_server.store.models import EvaluationMark, ForecasterState, Run, Stream
from memagent_server.store.upsert import upsert_all


class Mark(NamedTuple):
    """See `models.EvaluationMark`."""

    stream_id: int
    seq: int
    states: dict[str, Any]


def get_marks(session: Session, stream_ids: Collection[int]) -> dict[int, Mark]:
    """By stream; those that were never decided on are missing."""
    wanted = numbers(session, stream_ids)
    query = select(EvaluationMark.stream_id, EvaluationMark.seq, EvaluationMark.states).select_from(
        wanted
    )
    found = session.execute(query.join(EvaluationMark, EvaluationMark.stream_id == wanted.c.first))
    return {row.stream_id: Mark._make(row) for row in found}


def put_marks(session: Session, marks: Sequence[Mark]) -> None:
    """Keep how far streams have been decided. The runs' rows must be locked."""
    upsert_all(
        session, EvaluationMark, [mark._asdict() for mark in marks], update=("seq", "states")
    )


def get_recollections(
    session: Session, stream_ids: Collection[int]
) -> dict[int, tuple[int, bytes]]:
    """(last sample seen, state) of streams whose forecasters were remembered."""
    wanted = numbers(session, stream_ids)
    query = select(
        ForecasterState.stream_id, ForecasterState.seq, ForecasterState.state
    ).select_from(wanted)
    found = session.execute(
        query.join(ForecasterState, ForecasterState.stream_id == wanted.c.first)
    )
    return {row.stream_id: (row.seq, row.state) for row in found}


def put_recollections(session: Session, states: Sequence[tuple[int, int, bytes]]) -> None:
    """Keep (stream, last sample seen, state). The runs' rows must be locked."""
    rows = [
        {"stream_id": stream_id, "seq": seq, "state": state} for stream_id, seq, state in states
    ]
    upsert_all(session, ForecasterState, rows, update=("seq", "state"))


def forget_ended(session: Session) -> None:
    """Let go of recollections of launches that are over."""
    goes_on = (
        select(Stream.id)
        .join(Run, Run.id == Stream.run_id)
        .where(Run.status == "running", Stream.is_current)
    )
    session.execute(delete(ForecasterState).where(ForecasterState.stream_id.not_in(goes_on)))
