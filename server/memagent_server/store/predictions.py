"""Predictions: the estimator's static answers, kept beside the run they were made for."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire.codec import to_builtins
from memagent.wire.messages import PredictionMessage
from memagent_server.store.models import Prediction, Stream
from memagent_server.store.paging import newest
from memagent_server.store.runs import lock_run
from memagent_server.store.timestamps import iso

_FIELDS = tuple(PredictionMessage.__struct_fields__)


def add_prediction(
    session: Session, run_id: str, message: PredictionMessage, now: float
) -> Prediction:
    """Keep a prediction. The same one as the newest of its rank, device and method is kept once. Raises UnknownRunError."""
    lock_run(session, run_id)
    facts = {name: to_builtins(getattr(message, name)) for name in _FIELDS}
    newest = session.scalar(
        select(Prediction)
        .where(
            Prediction.run_id == run_id,
            Prediction.rank == message.rank,
            Prediction.device == message.device,
            Prediction.method == message.method,
        )
        .order_by(Prediction.id.desc())
        .limit(1)
    )
    if newest is not None and all(getattr(newest, name) == value for name, value in facts.items()):
        return newest
    prediction = Prediction(run_id=run_id, created_at=now, **facts)
    session.add(prediction)
    session.flush()
    return prediction


def list_predictions(session: Session, run_id: str) -> list[Prediction]:
    """All predictions of a run, newest first."""
    return list(
        session.scalars(
            select(Prediction).where(Prediction.run_id == run_id).order_by(Prediction.id.desc())
        )
    )


def page_predictions(
    session: Session, run_id: str, *, limit: int, cursor: str | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of a run's predictions in the shape of docs/http.md, newest first, and the cursor of the next page."""
    page, next_cursor = newest(
        session, Prediction, Prediction.run_id == run_id, limit=limit, cursor=cursor
    )
    return [describe_prediction(prediction) for prediction in page], next_cursor


def prediction_for(session: Session, run_id: str, stream: Stream | None) -> Prediction | None:
    """The newest prediction for the stream's device, or of the run where there is no stream; a traced one before a formula's."""
    mine = [
        prediction
        for prediction in list_predictions(session, run_id)
        if stream is None or (prediction.rank, prediction.device) == (stream.rank, stream.device)
    ]
    return next(
        iter([prediction for prediction in mine if prediction.method == "trace"] or mine), None
    )


def describe_prediction(prediction: Prediction) -> dict[str, Any]:
    """The shape of docs/http.md."""
    return {
        "id": prediction.id,
        "created_at": iso(prediction.created_at),
        **{name: getattr(prediction, name) for name in _FIELDS},
    }
