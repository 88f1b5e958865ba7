"""Runs of MLflow's stores: the SQLite database, and the folder `mlruns`.

1. Both are read as they lie there: MLflow's own reader would upgrade the database first.
2. `system/gpu_N_*` of the system metrics are readings of devices. Their steps are counts, so other
   system metrics are left out.
3. Parameters are texts in both; those that look like numbers become numbers, for filters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent.importer import mlflow_database, mlflow_files
from memagent.importer.device_log import SHARE
from memagent.importer.mlflow_run import TrackingRun
from memagent.importer.scalar_table import to_float, to_step
from memagent.importer.source_run import SourceRun
from memagent.wire.messages import FinalStatus

PACKAGE = "mlflow"
_GPU_METRIC = re.compile(r"system/(?:([^/]{1,100})/)?gpu_(\d{1,3})_(\w+)")
_GPU_COLUMNS = {
    "memory_usage_megabytes": ("device_used_bytes", 1e6),
    "memory_usage_percentage": (SHARE, 0.01),
    "utilization_percentage": ("utilization_ratio", 0.01),
    "power_usage_watts": ("power_w", 1.0),
}
"""Column and factor of a system metric of a GPU."""
_STATUSES: dict[str, FinalStatus] = {
    "FINISHED": "completed",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_FACTS = {
    "mlflow.note.content": "notes",
    "mlflow.source.name": "command",
    "mlflow.source.git.commit": "git_commit",
    "mlflow.source.git.branch": "git_branch",
    "mlflow.source.git.repoURL": "git_remote",
    "mlflow.parentRunId": "mlflow_parent",
}
_NUMBER = re.compile(r"[+-]?(\d+|(\d+\.\d*|\.\d+|\d+(?=e))(e[+-]?\d+)?)", re.IGNORECASE)


def is_source(name: str) -> bool:
    return mlflow_files.is_source(name) or mlflow_database.is_source(name)


def read_runs(path: Path, problems: list[str]) -> Iterator[SourceRun]:
    """Yield the runs of the stores at or below a path."""
    for stored in mlflow_database.read_runs(path, problems):
        yield _source_run(stored)
    for stored in mlflow_files.read_runs(path, problems):
        yield _source_run(stored)


def _source_run(stored: TrackingRun) -> SourceRun:
    tags = stored.tags
    run = SourceRun("mlflow", stored.place, key=stored.run_id)
    run.name = stored.name or tags.get("mlflow.runName") or stored.run_id
    run.project = stored.experiment
    run.user = stored.user or tags.get("mlflow.user")
    run.started_at = _seconds(stored.start_ms)
    run.finished_at = _seconds(stored.end_ms)
    run.status = _STATUSES.get(stored.status)
    for name, text in stored.parameters.items():
        run.configure(name, _to_value(text), len(text))
    run.tags = [
        f"{name}={text}" if text else name
        for name, text in tags.items()
        if not name.startswith("mlflow.")
    ]
    run.environment = {"mlflow_id": stored.run_id, **_facts(tags)}
    run.notes = stored.notes
    for point in stored.points:
        _add(run, *point)
    for kind, count in stored.skipped.items():
        run.skip(kind, count)
    return run


def _add(run: SourceRun, name: str, step: Any, time_ms: Any, value: Any) -> None:
    number, time_s = to_float(value), (to_float(time_ms) or 0.0) / 1000
    if number is None:
        run.skip("value without a number")
    elif not name.startswith("system/"):
        run.scalars.add(name, to_step(step), time_s, number)
    elif (match := _GPU_METRIC.fullmatch(name)) and match[3] in _GPU_COLUMNS:
        column, factor = _GPU_COLUMNS[match[3]]
        device = f"{match[1]}/gpu{match[2]}" if match[1] else f"gpu{match[2]}"
        run.devices.add(device, column, time_s, number * factor)
    else:
        run.skip("other system metric")


def _facts(tags: Mapping[str, str]) -> dict[str, str]:
    return {fact: tags[tag] for tag, fact in _FACTS.items() if tags.get(tag)}


def _seconds(time_ms: Any) -> float | None:
    number = to_float(time_ms)
    return number / 1000 if number is not None and 0 < number < 1e15 else None


def _to_value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if not _NUMBER.fullmatch(text) or len(text) > 30:
        return text
    number = float(text)
    if text.lstrip("+-").isdigit():
        return int(text)
    return number if math.isfinite(number) else text
