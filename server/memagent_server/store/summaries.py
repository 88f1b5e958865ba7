"""Summaries and descriptions of runs. A page of runs costs four queries for any number of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.orm import Session, load_only

from memagent.forecast.types import LEVELS
from memagent_server.schemas import alerts as alert_schemas
from memagent_server.schemas import runs as schemas
from memagent_server.schemas.predictions import ForecastSummary, precedence
from memagent_server.settings import GpuPrices
from memagent_server.store.events import list_events
from memagent_server.store.models import ForecastRow, PredictionRow, RunRow, StreamRow
from memagent_server.store.reading import to_schema
from memagent_server.store.resource_use import resource_use
from memagent_server.store.streams import current_streams, used_bytes
from memagent_server.store.usage import dropped_samples

MAX_EVENTS = 200

# built once: building these statements takes as long as running them
_RUN_IDS: BindParameter[Any] = bindparam("run_ids", expanding=True)
_NEWEST_PREDICTIONS = (
    select(PredictionRow)
    .options(
        load_only(
            PredictionRow.run_id,
            PredictionRow.rank,
            PredictionRow.device,
            PredictionRow.method,
            PredictionRow.peak_allocated_bytes,
        )
    )
    .where(
        PredictionRow.id.in_(
            select(func.max(PredictionRow.id))
            .where(PredictionRow.run_id.in_(_RUN_IDS))
            .group_by(
                PredictionRow.run_id, PredictionRow.rank, PredictionRow.device, PredictionRow.method
            )
        )
    )
    .order_by(PredictionRow.id.desc())
)
_NEWEST_FORECASTS = select(ForecastRow).where(
    ForecastRow.id.in_(
        select(func.max(ForecastRow.id))
        .join(
            StreamRow,
            (StreamRow.run_id == ForecastRow.run_id) & (StreamRow.id == ForecastRow.stream_id),
        )
        .where(ForecastRow.run_id.in_(_RUN_IDS), StreamRow.is_current)
        .group_by(ForecastRow.stream_id)
    )
)


def summarize(
    session: Session, runs: Sequence[RunRow], *, public_url: str = ""
) -> list[schemas.RunSummary]:
    """Return a summary of each run, in their order."""
    ids = [run.id for run in runs]
    streams: dict[str, list[StreamRow]] = defaultdict(list)
    for stream in current_streams(session, ids):
        streams[stream.run_id].append(stream)
    predictions: dict[str, list[PredictionRow]] = defaultdict(list)
    for prediction in session.scalars(_NEWEST_PREDICTIONS, {"run_ids": ids}):
        predictions[prediction.run_id].append(prediction)
    forecasts: dict[str, list[ForecastRow]] = defaultdict(list)
    for forecast in session.scalars(_NEWEST_FORECASTS, {"run_ids": ids}):
        forecasts[forecast.run_id].append(forecast)
    return [
        _summary(run, streams[run.id], predictions[run.id], forecasts[run.id], public_url)
        for run in runs
    ]


def describe(
    session: Session,
    run: RunRow,
    alerts: list[alert_schemas.Alert],
    prices: GpuPrices,
    *,
    public_url: str = "",
) -> schemas.Run:
    """Return a run with these alerts, its settings, streams and newest events."""
    (summary,) = summarize(session, [run], public_url=public_url)
    streams = session.scalars(
        select(StreamRow).where(StreamRow.run_id == run.id).order_by(StreamRow.id)
    )
    return schemas.Run(
        **asdict(summary),
        config=run.config,
        environment=run.environment,
        error=run.error,
        notes=run.notes,
        resources=resource_use(session, run.id, prices),
        dropped_samples=dropped_samples(session, run.id),
        streams=[to_schema(schemas.Stream, stream) for stream in streams],
        events=list_events(session, run.id, limit=MAX_EVENTS).events,
        alerts=alerts,
    )


def nearest_to_limit(streams: Collection[StreamRow]) -> StreamRow | None:
    """Return the stream whose peak has the highest share of its limit (0 without either).

    Of several, it's the one that uses the most of it now.
    """
    return max(streams, key=_fullness, default=None)


def predictions_of(
    stream: StreamRow | None, predictions: Sequence[PredictionRow]
) -> Sequence[PredictionRow]:
    """Return the predictions for a stream's device; those of other ranks if it has none."""
    if stream is None:
        return predictions
    place, is_host = (stream.rank, stream.device), stream.kind == "host"
    own = [item for item in predictions if (item.rank, item.device) == place]
    return own or [item for item in predictions if (item.device == "host") == is_host]


def best_prediction(newest_first: Iterable[PredictionRow]) -> PredictionRow | None:
    """Return the newest prediction of the most exact method."""
    return min(newest_first, key=lambda prediction: precedence(prediction.method), default=None)


def _fullness(stream: StreamRow) -> tuple[float, float]:
    limit = stream.limit_bytes
    if not limit:
        return 0.0, 0.0
    return (stream.peak_bytes or 0) / limit, (used_bytes(stream.latest) or 0) / limit


def _summary(
    run: RunRow,
    streams: Sequence[StreamRow],
    predictions: Sequence[PredictionRow],
    forecasts: Sequence[ForecastRow],
    public_url: str,
) -> schemas.RunSummary:
    stream = nearest_to_limit(streams)
    return to_schema(
        schemas.RunSummary,
        run,
        device=stream and stream.device,
        device_name=stream and stream.name,
        used_bytes=stream and used_bytes(stream.latest),
        peak_bytes=stream and stream.peak_bytes,
        limit_bytes=stream and stream.limit_bytes,
        sparkline=(stream and stream.sparkline.get("peaks")) or None,
        predicted_peak_bytes=_predicted_peak(predictions, stream),
        forecast=_worst(forecasts),
        url=f"{public_url}/runs/{run.id}",
    )


def _predicted_peak(predictions: Sequence[PredictionRow], stream: StreamRow | None) -> int | None:
    best = best_prediction(predictions_of(stream, predictions))
    return best.peak_allocated_bytes if best else None


def _worst(forecasts: Sequence[ForecastRow]) -> ForecastSummary | None:
    worst = max(
        forecasts,
        key=lambda forecast: (LEVELS.index(forecast.level), forecast.oom_probability),
        default=None,
    )
    return None if worst is None else to_schema(ForecastSummary, worst)
