"""Comparison of runs: summaries, components, and differences of configs and environments.

Each run also has its fullest stream, the headroom of that stream, a step time and its scalars. A
run that ran out of memory has a report: the event, newest readings, prediction and suspects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

from msgspec.structs import asdict

from memagent.diagnostics import display_roots
from memagent.oom.report import OomReport, oom_report
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.compare.components import components
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.runs import ComparedRun, Comparison, RunSummary
from memagent_server.store.engine import Session
from memagent_server.store.events import oom_events
from memagent_server.store.models import EventRow, RunRow, StreamRow
from memagent_server.store.predictions import advice_for, prediction_for
from memagent_server.store.series import series
from memagent_server.store.snapshots import suspects_of
from memagent_server.store.streams import current_streams
from memagent_server.store.summaries import nearest_to_limit, summarize

MIN_RUNS = 2
MAX_RUNS = 20
MAX_DIFFERENCES = 300
TOKEN_SCALARS = (
    "tokens",
    "num_tokens",
    "tokens_seen",
    "num_input_tokens_seen",
    "train/num_input_tokens_seen",
)
"""Names of trainers for a count of all tokens; the first one that a run logs is used."""
MEDIAN_STEPS = 200
"""Newest steps of which the median time is shown: few chunks have to be decoded."""
_MAX_SCALARS = 200


def compare_runs(session: Session, runs: Sequence[RunRow], *, public_url: str = "") -> Comparison:
    """Return the response of GET /compare: the runs, and {key: [value per run]} of differences."""
    summaries = summarize(session, runs, public_url=public_url)
    return Comparison(
        runs=[
            ComparedRun(
                **asdict(summary), **side, config=run.config, components=components(session, run.id)
            )
            for run, summary, side in zip(runs, summaries, sides(session, summaries), strict=True)
        ],
        config_differences=differences([run.config for run in runs]),
        environment_differences=differences([run.environment for run in runs]),
    )


def differences(configs: Sequence[JsonObject]) -> dict[str, list[Any]]:
    """Return the keys whose values differ between configs, at most MAX_DIFFERENCES.

    Nested keys have dots; a missing value is None.
    """
    flat = [_flatten(config) for config in configs]
    keys = sorted({key for config in flat for key in config})
    by_key = {key: [config.get(key) for config in flat] for key in keys}
    differing = [
        (key, values)
        for key, values in by_key.items()
        if any(value != values[0] for value in values)
    ]
    return dict(differing[:MAX_DIFFERENCES])


def _flatten(config: JsonObject, prefix: str = "") -> JsonObject:
    flat: JsonObject = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def sides(session: Session, summaries: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return each run's fields of the comparison, apart from its summary; see `side_of`."""
    memory, scalars = _by_run(session, [summary.id for summary in summaries])
    return [
        side_of(
            summary,
            stream := nearest_to_limit(memory[summary.id]),
            scalars[summary.id],
            step_s=median_step_s(session, stream) if stream is not None else None,
        )
        for summary in summaries
    ]


def side_of(
    summary: RunSummary, stream: StreamRow | None, scalars: Collection[str], *, step_s: float | None
) -> dict[str, Any]:
    """Return the fields of a run whose `stream` is nearest to its limit."""
    peak, limit = summary.peak_bytes, summary.limit_bytes
    predicted = summary.predicted_peak_bytes
    return {
        "rank": stream.rank if stream is not None else None,
        "attempt": stream.attempt if stream is not None else None,
        "first_step": stream.first_step if stream is not None else None,
        "last_step": stream.last_step if stream is not None else None,
        "headroom_bytes": limit - peak if limit is not None and peak is not None else None,
        "residual_bytes": peak - predicted if peak is not None and predicted is not None else None,
        "step_s": step_s,
        "scalars": sorted(scalars)[:_MAX_SCALARS],
        "tokens_scalar": next((name for name in TOKEN_SCALARS if name in scalars), None),
    }


def _by_run(
    session: Session, run_ids: Sequence[str]
) -> tuple[dict[str, list[StreamRow]], dict[str, set[str]]]:
    """Return the memory streams and the names of scalars of each run's newest launch."""
    memory: dict[str, list[StreamRow]] = {run_id: [] for run_id in run_ids}
    scalars: dict[str, set[str]] = {run_id: set() for run_id in run_ids}
    for stream in current_streams(session, run_ids, scalars=True):
        if stream.device != SCALARS_STREAM:
            memory[stream.run_id].append(stream)
        elif stream.rank == 0:  # the pages chart those of rank 0
            scalars[stream.run_id] |= stream.latest.keys() - {"step", "time_s"}
    return memory, scalars


def median_step_s(session: Session, stream: StreamRow) -> float | None:
    """Return the median time of the newest steps: one slow evaluation has no effect."""
    chart = series(
        session,
        stream.run_id,
        fields=("step_s",),
        rank=stream.rank,
        device=stream.device,
        attempt=stream.attempt,
        first=max(0, (stream.last_step or 0) - MEDIAN_STEPS + 1),
        points=MEDIAN_STEPS,
    )
    values = [value for value in chart.series["step_s"].last if value is not None]
    return float(median(values)) if values else None


def oom_report_of(session: Session, run: RunRow, stream: StreamRow | None) -> OomReport | None:
    """Return the OOM report of a run for `stream`'s rank and device.

    None if the run didn't run out of memory, or sent no OOM event.
    """
    event = _oom_event(session, run, stream) if run.status == "oom" else None
    if event is None:
        return None
    prediction = prediction_for(session, run.id, stream)
    return oom_report(
        event.data,
        event.step,
        device=stream.device if stream else None,
        reading=_allocator_reading(stream) if stream else None,
        predicted_peak_bytes=prediction.peak_allocated_bytes if prediction else None,
        suspects=[asdict(suspect) for suspect in suspects_of(session, run.id)],
        advice=advice_for(session, run.id, stream),
        roots=display_roots(run.environment),
    )


def _oom_event(session: Session, run: RunRow, stream: StreamRow | None) -> EventRow | None:
    """Return the newest `oom` event of the newest launch, preferably of the stream's rank."""
    newest_first = oom_events(session, run.id)[::-1]
    same_rank = [
        event for event in newest_first if stream is not None and event.rank == stream.rank
    ]
    return next(iter(same_rank or newest_first), None)


def _allocator_reading(stream: StreamRow) -> dict[str, Any]:
    """Return a stream's newest sample; a host's `reserved` is mapped memory, not a cache."""
    return stream.latest if stream.kind != "host" else {**stream.latest, "reserved_bytes": None}
