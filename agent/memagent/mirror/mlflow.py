"""MLflow: metrics of the active run, one request a point. Warnings become tags, the newest by level: MLflow has nothing closer."""

from __future__ import annotations

import re
from typing import Any

from memagent.errors import SettingError
from memagent.mirror.aggregate import Point

PACKAGE = "mlflow"
_PREFIX = "memagent/"
_REFUSED = re.compile(r"[^\w\-. /]")
"""In the name of a metric; one bad name and MLflow refuses the whole request."""
LONGEST_TAG = 5_000
"""Characters: what servers of every version take."""


def find(_: str) -> MlflowTracker:
    import mlflow

    run_id = _active()  # first: a client makes a database in the working directory
    return MlflowTracker(mlflow.MlflowClient(), run_id)


def is_its(given: Any) -> bool:
    return type(given).__module__.startswith("mlflow.") and (
        _is_run(given) or hasattr(given, "log_batch")
    )


def take(given: Any) -> MlflowTracker:
    import mlflow

    if _is_run(given):
        return MlflowTracker(mlflow.MlflowClient(), given.info.run_id)
    return MlflowTracker(given, _active())


class MlflowTracker:
    name = "MLflow"

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def write(self, point: Point) -> None:
        from mlflow.entities import Metric

        at_ms = round(point.time_s * 1000)
        values = {_PREFIX + _REFUSED.sub("_", name): value for name, value in point.values.items()}
        metrics = [Metric(name, float(value), at_ms, point.step) for name, value in values.items()]
        for first in range(0, len(metrics), 1_000):  # as many as a request may hold
            self._client.log_batch(self._run_id, metrics=metrics[first : first + 1_000])

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        level = "critical" if is_critical else "warning"
        self._client.set_tag(self._run_id, f"memagent.{level}", f"{title}\n{text}"[:LONGEST_TAG])

    def close(self) -> None:
        return None


def _is_run(given: Any) -> bool:
    return hasattr(getattr(given, "info", None), "run_id")


def _active() -> str:
    """Of the calling thread: MLflow's active run is each thread's own."""
    import mlflow

    run = mlflow.active_run()
    if run is None:
        raise SettingError(
            'mirror="mlflow" needs an active run: call mlflow.start_run() before memagent.attach(), or give its run'
        )
    return str(run.info.run_id)
