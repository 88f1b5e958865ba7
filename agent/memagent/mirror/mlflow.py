"""MLflow: metrics of the active run, one request a point.

Warnings become tags, the newest of each level: MLflow has nothing closer.
"""

from __future__ import annotations

import re
from typing import Any

from memagent.errors import SettingError
from memagent.mirror.aggregate import Point

PACKAGE = "mlflow"
MAX_TAG_LENGTH = 5_000
"""Characters that servers of every version accept."""
MAX_METRICS = 1_000
"""Metrics that a request may hold."""
_PREFIX = "memagent/"
_INVALID_CHARACTERS = re.compile(r"[^\w\-. /]")
"""Characters that a metric's name can't have: one bad name rejects the whole request."""


def discover(_run_id: str) -> MlflowTracker:
    import mlflow

    run_id = _active_run_id()  # first: a client creates a database in the working directory
    return MlflowTracker(mlflow.MlflowClient(), run_id)


def accepts(target: Any) -> bool:
    is_of_mlflow = type(target).__module__.startswith("mlflow.")
    return is_of_mlflow and (_is_run(target) or hasattr(target, "log_batch"))


def wrap(target: Any) -> MlflowTracker:
    import mlflow

    if _is_run(target):
        return MlflowTracker(mlflow.MlflowClient(), target.info.run_id)
    return MlflowTracker(target, _active_run_id())


class MlflowTracker:
    name = "MLflow"

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def write(self, point: Point) -> None:
        from mlflow.entities import Metric

        at_ms = round(point.time_s * 1000)
        metrics = [
            Metric(_PREFIX + _INVALID_CHARACTERS.sub("_", name), float(value), at_ms, point.step)
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + MAX_METRICS])

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        level = "critical" if is_critical else "warning"
        tag = f"{title}\n{text}"[:MAX_TAG_LENGTH]
        self._client.set_tag(self._run_id, f"memagent.{level}", tag)

    def close(self) -> None:
        return None


def _is_run(target: Any) -> bool:
    return hasattr(getattr(target, "info", None), "run_id")


def _active_run_id() -> str:
    """Return the id of the calling thread's active run: MLflow has one for each thread."""
    import mlflow

    run = mlflow.active_run()
    if run is None:
        raise SettingError(
            'mirror="mlflow" needs an active run: call mlflow.start_run() before '
            "memagent.attach(), or pass its run."
        )
    return str(run.info.run_id)
