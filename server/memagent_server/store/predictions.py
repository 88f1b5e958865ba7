"""Predictions: static estimates of a run's memory, stored with the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire.codec import to_builtins
from memagent.wire.messages import PredictionMessage
from memagent_server.schemas import predictions as schemas
from memagent_server.schemas.predictions import precedence
from memagent_server.store.models import PredictionRow, StreamRow
from memagent_server.store.reading import newest_page, text_keys, to_schema
from memagent_server.store.runs import lock_run
from memagent_server.store.summaries import best_prediction, predictions_of

PeakRow = tuple[str, int, int, str, str, int]
_FIELDS = PredictionMessage.__struct_fields__


def add_prediction(
    session: Session, run_id: str, message: PredictionMessage, now: float
) -> PredictionRow:
    """Store a prediction, or return the newest of its rank, device and method if that is equal.

    Raises UnknownRunError.
    """
    lock_run(session, run_id)
    values = {name: to_builtins(getattr(message, name)) for name in _FIELDS}
    newest = session.scalar(
        select(PredictionRow)
        .where(
            PredictionRow.run_id == run_id,
            PredictionRow.rank == message.rank,
            PredictionRow.device == message.device,
            PredictionRow.method == message.method,
        )
        .order_by(PredictionRow.id.desc())
        .limit(1)
    )
    if newest is not None and all(getattr(newest, name) == value for name, value in values.items()):
        return newest
    prediction = PredictionRow(run_id=run_id, created_at=now, **values)
    session.add(prediction)
    session.flush()
    return prediction


def page_predictions(
    session: Session, run_id: str, *, limit: int, cursor: str | None = None
) -> schemas.PredictionPage:
    """Return a page of a run's predictions, the newest first. Raises WireError for a bad cursor."""
    rows, next_cursor = newest_page(
        session, PredictionRow, PredictionRow.run_id == run_id, limit=limit, cursor=cursor
    )
    predictions = [to_schema(schemas.Prediction, row) for row in rows]
    return schemas.PredictionPage(run_id, predictions, next_cursor)


def list_predictions(session: Session, run_id: str) -> list[PredictionRow]:
    """Return all predictions of a run, the newest first."""
    query = select(PredictionRow).where(PredictionRow.run_id == run_id)
    return list(session.scalars(query.order_by(PredictionRow.id.desc())))


def prediction_for(session: Session, run_id: str, stream: StreamRow | None) -> PredictionRow | None:
    """Return the newest prediction for a stream's device, or of the run if the device has none.

    A rehearsal takes precedence over a trace, and a trace over a formula.
    """
    return best_prediction(_predictions_of(session, run_id, stream))


def advice_for(session: Session, run_id: str, stream: StreamRow | None) -> list[Any]:
    """Return the advice of the best prediction that has some: a rehearsal's has none."""
    advised = [item for item in _predictions_of(session, run_id, stream) if item.advice]
    best = best_prediction(advised)
    return best.advice if best is not None else []


def _predictions_of(
    session: Session, run_id: str, stream: StreamRow | None
) -> Sequence[PredictionRow]:
    return predictions_of(stream, list_predictions(session, run_id))


def predictions_after(session: Session, last_ids: Mapping[str, int]) -> Iterable[PeakRow]:
    """Return (run, id, rank, device, method, peak) of each run's predictions after the given id."""
    keys = text_keys(session, last_ids.items())
    query = (
        select(
            PredictionRow.run_id,
            PredictionRow.id,
            PredictionRow.rank,
            PredictionRow.device,
            PredictionRow.method,
            PredictionRow.peak_allocated_bytes,
        )
        .select_from(keys)
        .join(
            PredictionRow,
            (PredictionRow.run_id == keys.c.first) & (PredictionRow.id > keys.c.second),
        )
    )
    return session.execute(query.order_by(PredictionRow.id))


def newest_components(
    session: Session, run_ids: Iterable[str]
) -> dict[tuple[str, int, str], dict[str, int]]:
    """Return the best prediction's components and `peak` by (run, rank, device)."""
    keys = text_keys(session, ((run_id, 0) for run_id in run_ids))
    query = (
        select(
            PredictionRow.run_id,
            PredictionRow.rank,
            PredictionRow.device,
            PredictionRow.components,
            PredictionRow.peak_allocated_bytes,
            PredictionRow.method,
        )
        .select_from(keys)
        .join(PredictionRow, PredictionRow.run_id == keys.c.first)
        .order_by(PredictionRow.id)
    )
    # the last one of a key stays
    rows = sorted(session.execute(query), key=lambda row: -precedence(row.method))
    return {
        (run_id, rank, device): {**components, "peak": peak}
        for run_id, rank, device, components, peak, _ in rows
    }
