"""Runs beside each other: their summaries, their components, and the settings and surroundings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from memagent_server.compare.components import components
from memagent_server.compare.side_by_side import sides
from memagent_server.store.models import Run
from memagent_server.store.summaries import summarize

FEWEST_RUNS, MOST_RUNS = 2, 20
MOST_DIFFERENCES = 300


def compare_runs(session: Session, runs: Sequence[Run], *, public_url: str = "") -> dict[str, Any]:
    """The shape of GET /compare: runs in the order given, and {key: [value per run]} of what differs in configs and environments."""
    summaries = summarize(session, runs, public_url=public_url)
    return {
        "runs": [
            {**summary, **side, "config": run.config, "components": components(session, run.id)}
            for run, summary, side in zip(runs, summaries, sides(session, summaries), strict=True)
        ],
        "config_differences": differences([run.config for run in runs]),
        "environment_differences": differences([run.environment for run in runs]),
    }


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
