"""Weights & Biases: points are added to the rows that the script logs.

1. A row has one step, and steps only grow. A separate row would use up a step, and W&B could
   reject the script's next row, at its epoch's number for example, as being in the past. So points
   are added to the open row (`commit=False`), and the script's next log ends it.
2. While the script logs nothing, points wait. Beyond MAX_WAITING_POINTS neighbors are merged.
3. If the script logged nothing until the end, each point becomes a row: no step is taken from it.

The chart's axis is memagent/step. https://docs.wandb.ai/guides/track/log/customize-logging-axes
"""

from __future__ import annotations

from typing import Any

from memagent.errors import SettingError
from memagent.mirror.aggregate import Point, merge_points

PACKAGE = "wandb"
MAX_WAITING_POINTS = 500
_PREFIX = "memagent/"
_STEP = "memagent/step"


def discover(_run_id: str) -> WandbTracker:
    import wandb

    if wandb.run is None:
        raise SettingError(
            'mirror="wandb" needs an active run: call wandb.init() before memagent.attach(), '
            "or pass its run."
        )
    return WandbTracker(wandb.run)


def accepts(target: Any) -> bool:
    return type(target).__module__.startswith("wandb.") and hasattr(target, "define_metric")


def wrap(target: Any) -> WandbTracker:
    return WandbTracker(target)


class WandbTracker:
    name = "W&B"

    def __init__(self, run: Any) -> None:
        self._run = run
        self._first_row = run.step
        self._row = run.step
        self._waiting: list[Point] = []
        run.define_metric(_STEP, hidden=True)
        run.define_metric(f"{_PREFIX}*", step_metric=_STEP)

    def write(self, point: Point) -> None:
        self._waiting.append(point)
        if self._run.step != self._row:
            self._add_to_open_row()
        elif len(self._waiting) > MAX_WAITING_POINTS:
            points = self._waiting
            pairs = (points[first : first + 2] for first in range(0, len(points), 2))
            self._waiting = [merged for pair in pairs if (merged := merge_points(pair)) is not None]

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        self._run.alert(title, text, level="ERROR" if is_critical else "WARN")

    def close(self) -> None:
        if self._row != self._first_row or self._run.step != self._row:
            self._add_to_open_row()
            return
        for point in self._waiting:
            self._run.log(_row_values(point))
        self._waiting = []

    def _add_to_open_row(self) -> None:
        point, self._waiting = merge_points(self._waiting), []
        self._row = self._run.step
        if point is not None:
            self._run.log(_row_values(point), commit=False)


def _row_values(point: Point) -> dict[str, float]:
    return {_STEP: point.step, **{_PREFIX + name: value for name, value in point.values.items()}}
