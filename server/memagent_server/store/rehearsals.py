"""Rehearsals: stored under their script's fingerprint, and given to its real runs as predictions.

1. The newest rehearsal on the run's own card counts, else the newest that fits its card.
2. A rehearsal that ran out of memory shows what another card would need at least, so it counts for
   its own card only.
3. The newest MAX_REHEARSALS of a fingerprint are kept, and the newest MAX_OF_PROJECT of a project:
   each edit of a script has another fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import convert
from msgspec.structs import replace
from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent.wire.codec import to_builtins
from memagent.wire.messages import Device, PredictionMessage, RehearsalMessage, RunStart
from memagent_server.schemas.predictions import RehearsalPage, StoredRehearsal
from memagent_server.store.models import RehearsalRow
from memagent_server.store.predictions import add_prediction
from memagent_server.store.reading import iso, newest_page, to_schema

MAX_REHEARSALS = 10
MAX_OF_PROJECT = 1_000
_FIELDS = ("fingerprint", "project", "script", "gpu", "world_size", "user", "host", "fits")


def add_rehearsal(session: Session, message: RehearsalMessage, now: float) -> RehearsalRow:
    """Store a rehearsal, and delete the oldest beyond the limits."""
    rehearsal = RehearsalRow(
        **{name: getattr(message, name) for name in _FIELDS},
        created_at=now,
        prediction=to_builtins(message.prediction),
    )
    session.add(rehearsal)
    session.flush()
    of_project = RehearsalRow.project == message.project
    of_script = RehearsalRow.fingerprint == message.fingerprint
    _keep_newest(session, MAX_REHEARSALS, of_project, of_script)
    _keep_newest(session, MAX_OF_PROJECT, of_project)
    return rehearsal


def predict_by_rehearsal(session: Session, start: RunStart, now: float) -> None:
    """Give the started run the prediction of its script's rehearsal, if there is one."""
    devices = [device for device in start.devices if device.kind == "cuda"]
    if start.rank or start.fingerprint is None or not devices:
        return
    candidates = _newest(session, start.project, start.fingerprint)
    same_size = [row for row in candidates if row.world_size == start.world_size]
    rehearsal = _choose(same_size, devices[0])
    if rehearsal is None:
        return
    prediction = convert(rehearsal.prediction, PredictionMessage)
    origin = {
        "script": rehearsal.script,
        "gpu": rehearsal.gpu,
        "rehearsed_at": iso(rehearsal.created_at),
    }
    message = replace(
        prediction,
        method="rehearsal",
        rank=0,
        device=devices[0].id,
        assumptions={**prediction.assumptions, **origin},
    )
    add_prediction(session, start.run_id, message, now)


def page_rehearsals(
    session: Session, *, limit: int, cursor: str | None = None, project: str | None = None
) -> RehearsalPage:
    """Return a page of rehearsals, the newest first. Raises WireError for a bad cursor."""
    conditions = [] if project is None else [RehearsalRow.project == project]
    rows, next_cursor = newest_page(session, RehearsalRow, *conditions, limit=limit, cursor=cursor)
    return RehearsalPage([to_schema(StoredRehearsal, row) for row in rows], next_cursor)


def _newest(session: Session, project: str, fingerprint: str) -> Sequence[RehearsalRow]:
    query = (
        select(RehearsalRow)
        .where(RehearsalRow.project == project, RehearsalRow.fingerprint == fingerprint)
        .order_by(RehearsalRow.id.desc())
        .limit(MAX_REHEARSALS)
    )
    return session.scalars(query).all()


def _keep_newest(session: Session, count: int, *conditions: ColumnElement[bool]) -> None:
    ids = select(RehearsalRow.id).where(*conditions).order_by(RehearsalRow.id.desc())
    newest_excess = session.scalar(ids.offset(count).limit(1))
    if newest_excess is not None:
        session.execute(delete(RehearsalRow).where(*conditions, RehearsalRow.id <= newest_excess))


def _choose(candidates: Sequence[RehearsalRow], device: Device) -> RehearsalRow | None:
    """Return the rehearsal that counts for this device: see 1 and 2."""
    for row in candidates:
        if row.gpu == device.name:
            return row
    return next((row for row in candidates if row.fits), None)
