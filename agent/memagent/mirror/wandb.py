"""Weights & Biases: points ride along in the rows that the script logs.

1. A row has one step, and steps only grow. A row of ours would use one up, and what a script logs at a step of its own counting (its epoch,
   say) would then be refused by W&B as being in the past. So ours is added to the row that is open (`commit=False`), and the
   script's next log ends it.
2. While the script logs nothing, points wait. After MOST_WAITING of them neighbours are merged.
3. A script that logged nothing until the end gets all of them as rows of their own: no step can be taken from anybody any more.

The chart's axis is memagent/step. https://docs.wandb.ai/guides/track/log/customize-logging-axes
"""

from __future__ import annotations

from typing import Any

from memagent.errors import SettingError
from memagent.mirror.aggregate import Point, merged

PACKAGE = "wandb"
MOST_WAITING = 500
_PREFIX, _STEP = "memagent/", "memagent/step"


def find(_: str) -> WandbTracker:
    import wandb

    if wandb.run is None:
        raise SettingError(
            'mirror="wandb" needs an active run: call wandb.init() before memagent.attach(), or give its run'
        )
    return WandbTracker(wandb.run)


def is_its(given: Any) -> bool:
    return type(given).__module__.startswith("wandb.") and hasattr(given, "define_metric")


def take(given: Any) -> WandbTracker:
    return WandbTracker(given)


class WandbTracker:
    name = "W&B"

    def __init__(self, run: Any) -> None:
        self._run = run
        self._first_row = self._row = run.step
        self._waiting: list[Point] = []
        run.define_metric(_STEP, hidden=True)
        run.define_metric(f"{_PREFIX}*", step_metric=_STEP)

    def write(self, point: Point) -> None:
        self._waiting.append(point)
        if self._run.step != self._row:
            self._add_to_row()
        elif len(self._waiting) > MOST_WAITING:
            halves = [self._waiting[at : at + 2] for at in range(0, len(self._waiting), 2)]
            self._waiting = [both for half in halves if (both := merged(half)) is not None]

    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None:
        self._run.alert(title, text, level="ERROR" if is_critical else "WARN")

    def close(self) -> None:
        if self._row != self._first_row or self._run.step != self._row:
            self._add_to_row()
            return
        for point in self._waiting:
            self._run.log(_fields(point))
        self._waiting = []

    def _add_to_row(self) -> None:
        """What waits becomes part of the row that is open now."""
        point, self._waiting = merged(self._waiting), []
        self._row = self._run.step
        if point is not None:
            self._run.log(_fields(point), commit=False)


def _fields(point: Point) -> dict[str, float]:
    return {_STEP: point.step, **{_PREFIX + name: value for name, value in point.values.items()}}
