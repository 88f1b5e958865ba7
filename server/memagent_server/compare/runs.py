"""Runs beside each other: their summaries, their components, and the settings and surroundings in which they differ.

One run as it stands beside others: its fullest stream, what that leaves of the limit, how long a step takes, and what it logs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

from memagent.wire.fields import SCALARS_STREAM
from memagent_server.compare.components import components
from memagent_server.schemas.runs import ComparedRun, Comparison, RunSummary
from memagent_server.store.engine import Session
from memagent_server.store.models import Run, Stream
from memagent_server.store.series import series
from memagent_server.store.streams import current_streams
from memagent_server.store.summaries import nearest_to_limit, summarize

FEWEST_RUNS, MOST_RUNS = 2, 20
MOST_DIFFERENCES = 300


def compare_runs(session: Session, runs: Sequence[Run], *, public_url: str = "") -> Comparison:
    """The shape of GET /compare: runs in the order given, and {key: [value per run]} of what differs in configs and environments."""
    summaries = summarize(session, runs, public_url=public_url)
    return Comparison(
        runs=[
            ComparedRun(
                **summary, **side, config=run.config, components=components(session, run.id)
            )
            for run, summary, side in zip(runs, summaries, sides(session, summaries), strict=True)
        ],
        config_differences=differences([run.config for run in runs]),
        environment_differences=differences([run.environment for run in runs]),
    )


def differences(configs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Keys whose values are not the same in all configs, nested ones with dots; a missing value is None. At most MOST_DIFFERENCES."""
    flat = [_flatten(config) for config in configs]
    keys = sorted({key for config in flat for key in config})
    by_key = {key: [config.get(key) for config in flat] for key in keys}
    differing = [
        (key, values)
        for key, values in by_key.items()
        if any(value != values[0] for value in values)
    ]
    return dict(differing[:MOST_DIFFERENCES])


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


TOKEN_SCALARS = (
    "tokens",
    "num_tokens",
    "tokens_seen",
    "num_input_tokens_seen",
    "train/num_input_tokens_seen",
)
"""Scalars that count tokens from the start, by what trainers call them; the first that a run logs counts."""
_STEP_POINTS = 200
_MOST_SCALARS = 200


def sides(session: Session, summaries: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """What a comparison says of each run besides its RunSummary, in their order: see `side_of`."""
    memory, scalars = _by_run(session, [summary["id"] for summary in summaries])
    return [
        side_of(
            summary, stream := nearest_to_limit(memory[summary["id"]]), scalars[summary["id"]],
            step_s=_step_s(session, stream) if stream is not None else None,
        )
        for summary in summaries
    ]  # fmt: skip


def side_of(
    summary: RunSummary, stream: Stream | None, scalars: Collection[str], *, step_s: float | None
) -> dict[str, Any]:
    """The stream that is nearest to its limit (rank, attempt), bytes of headroom and residual, seconds of a step, the scalars."""
    peak, limit, predicted = (
        summary[f"{name}_bytes"] for name in ("peak", "limit", "predicted_peak")
    )
    return {
        "rank": stream.rank if stream is not None else None,
        "attempt": stream.attempt if stream is not None else None,
        "first_step": stream.first_step if stream is not None else None,
        "last_step": stream.last_step if stream is not None else None,
        "headroom_bytes": limit - peak if limit is not None and peak is not None else None,
        "residual_bytes": peak - predicted if peak is not None and predicted is not None else None,
        "step_s": step_s,
        "scalars": sorted(scalars)[:_MOST_SCALARS],
        "tokens_scalar": next((name for name in TOKEN_SCALARS if name in scalars), None),
    }


def _by_run(
    session: Session, run_ids: Sequence[str]
) -> tuple[dict[str, list[Stream]], dict[str, set[str]]]:
    """The streams with memory and the names of the scalars of each run's newest launch."""
    memory: dict[str, list[Stream]] = {run_id: [] for run_id in run_ids}
    scalars: dict[str, set[str]] = {run_id: set() for run_id in run_ids}
    for stream in current_streams(session, run_ids, scalars=True):
        if stream.device != SCALARS_STREAM:
            memory[stream.run_id].append(stream)
        elif stream.rank == 0:  # the pages chart those of rank 0
            scalars[stream.run_id] |= stream.latest.keys() - {"step", "time_s"}
    return memory, scalars


def _step_s(session: Session, stream: Stream) -> float | None:
    """The median over parts of the run, so that one slow evaluation says nothing."""
    found = series(
        session, stream.run_id, fields=("step_s",), rank=stream.rank, device=stream.device, attempt=stream.attempt,
        points=_STEP_POINTS,
    )  # fmt: skip
    known = [value for value in found.series["step_s"].last if value is not None]
    return float(median(known)) if known else None
