"""What lists and pages say of runs, in the shapes of docs/http.md. A page of runs costs four queries, however many it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.orm import Session, load_only

from memagent.forecast.types import LEVELS
from memagent_server.store.events import list_events
from memagent_server.store.models import Dropped, Forecast, Prediction, Run, Stream
from memagent_server.store.streams import current_streams, used_bytes
from memagent_server.store.timestamps import iso

EVENTS_SHOWN = 200
_STREAM_FIELDS = (
    "rank", "attempt", "device", "kind", "name", "limit_bytes", "limit_source", "first_step", "last_step", "samples", "peak_bytes",
)  # fmt: skip

_RUN_IDS: BindParameter[Any] = bindparam("run_ids", expanding=True)
# made once: to put one together takes as long as to ask it
_NEWEST_PREDICTIONS = (
    select(Prediction)
    .options(
        load_only(
            Prediction.run_id, Prediction.rank, Prediction.device, Prediction.peak_allocated_bytes
        )
    )
    .where(
        Prediction.id.in_(
            select(func.max(Prediction.id))
            .where(Prediction.run_id.in_(_RUN_IDS))
            .group_by(Prediction.run_id, Prediction.rank, Prediction.device, Prediction.method)
        )
    )
    .order_by(Prediction.id.desc())
)
_NEWEST_FORECASTS = select(Forecast).where(
    Forecast.id.in_(
        select(func.max(Forecast.id))
        .join(Stream, Stream.id == Forecast.stream_id)
        .where(Forecast.run_id.in_(_RUN_IDS), Stream.is_current)
        .group_by(Forecast.stream_id)
    )
)


def summarize(
    session: Session, runs: Sequence[Run], *, public_url: str = ""
) -> list[dict[str, Any]]:
    """A RunSummary for each run, in their order."""
    ids = [run.id for run in runs]
    streams: dict[str, list[Stream]] = defaultdict(list)
    for stream in current_streams(session, ids):
        streams[stream.run_id].append(stream)
    predictions, forecasts = _newest_predictions(session, ids), _newest_forecasts(session, ids)
    return [
        {
            **_facts(run),
            **_memory(nearest := nearest_to_limit(streams[run.id])),
            "predicted_peak_bytes": _predicted_peak(predictions[run.id], nearest),
            "forecast": _worst(forecasts[run.id]),
            "url": f"{public_url}/runs/{run.id}",
        }
        for run in runs
    ]


def describe(session: Session, run: Run, *, public_url: str = "") -> dict[str, Any]:
    """All there is to know of a run, without samples and alerts."""
    streams = session.scalars(select(Stream).where(Stream.run_id == run.id).order_by(Stream.id))
    events, _ = list_events(session, run.id, limit=EVENTS_SHOWN)
    dropped = session.execute(
        select(Dropped.reason, func.sum(Dropped.count))
        .where(Dropped.run_id == run.id)
        .group_by(Dropped.reason)
    )
    return {
        **summarize(session, [run], public_url=public_url)[0],
        "config": run.config,
        "environment": run.environment,
        "error": run.error,
        "dropped_samples": {reason: int(count) for reason, count in dropped},
        "streams": [_stream(stream) for stream in streams],
        "events": events,
    }


def nearest_to_limit(streams: Collection[Stream]) -> Stream | None:
    """The stream whose memory is fullest; one without readings or limit counts as empty."""
    return max(streams, key=_fullness, default=None)


def _fullness(stream: Stream) -> float:
    used = used_bytes(stream)
    return used / stream.limit_bytes if used and stream.limit_bytes else 0.0


def _facts(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "project": run.project,
        "name": run.name,
        "user": run.user,
        "host": run.host,
        "status": run.status,
        "created_at": iso(run.created_at),
        "started_at": iso(run.started_at),
        "last_seen_at": iso(run.last_seen_at),
        "finished_at": iso(run.finished_at),
        "step": run.step,
        "total_steps": run.total_steps,
        "world_size": run.world_size,
        "tags": run.tags,
        "is_archived": run.is_archived,
    }


def _memory(stream: Stream | None) -> dict[str, Any]:
    if stream is None:
        return dict.fromkeys(
            ("device", "device_name", "used_bytes", "peak_bytes", "limit_bytes", "sparkline")
        )
    return {
        "device": stream.device,
        "device_name": stream.name,
        "used_bytes": used_bytes(stream),
        "peak_bytes": stream.peak_bytes,
        "limit_bytes": stream.limit_bytes,
        "sparkline": stream.sparkline.get("peaks") or None,
    }


def _stream(stream: Stream) -> dict[str, Any]:
    facts = {name: getattr(stream, name) for name in _STREAM_FIELDS}
    return {
        **facts,
        "is_current": stream.is_current,
        "last_sample_at": iso(stream.last_sample_at),
        "latest": stream.latest,
    }


def _newest_predictions(session: Session, run_ids: Collection[str]) -> dict[str, list[Prediction]]:
    """Of each run the newest prediction of each rank, device and method, newest first."""
    found: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in session.scalars(_NEWEST_PREDICTIONS, {"run_ids": run_ids}):
        found[prediction.run_id].append(prediction)
    return found


def _predicted_peak(predictions: Sequence[Prediction], stream: Stream | None) -> int | None:
    if stream is not None:
        for prediction in predictions:
            if (prediction.rank, prediction.device) == (stream.rank, stream.device):
                return prediction.peak_allocated_bytes
    return predictions[0].peak_allocated_bytes if predictions else None


def _newest_forecasts(session: Session, run_ids: Collection[str]) -> dict[str, list[Forecast]]:
    """Of each run the newest forecast of each current stream."""
    found: dict[str, list[Forecast]] = defaultdict(list)
    for forecast in session.scalars(_NEWEST_FORECASTS, {"run_ids": run_ids}):
        found[forecast.run_id].append(forecast)
    return found


def _worst(forecasts: Sequence[Forecast]) -> dict[str, Any] | None:
    if not forecasts:
        return None
    worst = max(
        forecasts, key=lambda forecast: (LEVELS.index(forecast.level), forecast.oom_probability)
    )
    return {
        name: getattr(worst, name) for name in ("level", "oom_probability", "cause", "eta_step")
    }
