"""A series of any length in bounded memory: equal buckets that double in width when they are full.

1. A bucket keeps one value of its steps: the lowest (for a floor, to which a saw tooth always
   returns) or the highest (for peaks).
2. At MAX_BUCKETS, neighbors are merged and the width doubles. So between half and all of the
   buckets are in use, whatever the length.
3. A fall by more than half of the rise ends a *tooth*, whose height and length are remembered. A
   later rise that's no higher and not much longer is a repetition. A longer rise isn't, so a spike
   at the start doesn't hide a leak.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from memagent.forecast.running_statistics import RunningLeastSquares

MAX_BUCKETS = 128
"""Bounds memory, and the time of a fit."""
TOOTH_END_FALL_RATIO = 0.5
"""Share of the rise that a fall must undo to end a tooth."""
MIN_TOOTH_RATIO = 0.25
"""A rise smaller than this share of the last tooth belongs to its fall, or is noise at its foot."""
MAX_REPETITION_RATIO = 1.5
"""A rise may be a repetition for this many times the last tooth's length."""


class BucketedSeries:
    """`reduce` is `min` or `max`."""

    __slots__ = (
        "_base",
        "_base_step",
        "_ceiling",
        "_count",
        "_last_step",
        "_lowest",
        "_peak",
        "_quiet_until",
        "_reduce",
        "_tooth_steps",
        "_top",
        "_value",
        "fell_at",
        "lines",
        "steps",
        "tops",
        "values",
        "width",
    )

    def __init__(self, reduce: Callable[[float, float], float]) -> None:
        self._reduce = reduce
        self.steps: list[float] = []
        """Last step of each bucket."""
        self.values: list[float] = []
        self.tops: list[float] = []
        """Highest value of each bucket, even if `values` are the lowest."""
        self.lines = RunningLeastSquares()
        """Lines through the values, up to the last fit."""
        self.clear()

    def clear(self) -> None:
        """Start the series again."""
        self.steps.clear()
        self.values.clear()
        self.tops.clear()
        self.lines = RunningLeastSquares()
        self.width = 1
        self._lowest = inf
        self._count = 0
        self._value = self._peak = self._last_step = 0.0
        # The rise since the last fall, from its lowest to its highest value.
        self._base = inf
        self._base_step = 0.0
        self._top = -inf
        # The last tooth: its top, its length, and until when a rise may repeat it.
        self._ceiling = self.fell_at = self._quiet_until = -inf
        self._tooth_steps = 0.0

    @property
    def rise(self) -> float:
        """Return the newest bucket's value above the lowest, minus infinity without any."""
        return self.values[-1] - self._lowest if self.values else -inf

    @property
    def room(self) -> int:
        """Return how many values the bucket in progress lacks."""
        return self.width - self._count

    def add(self, step: float, value: float, noise: float, count: int = 1) -> bool:
        """Add a value. Return True if it completes a bucket. Falls below `noise` are ignored.

        count: steps with this value, the last of them `step`; at most `room`.
        """
        top = self._top
        if value > top:
            self._top = value
        elif value < top - noise and value < top - TOOTH_END_FALL_RATIO * (top - self._base):
            self._end_tooth(step, value)
        if value < self._base:
            self._base = value
            self._base_step = step
        if self._count == 0:
            self._value = self._peak = value
        elif value != self._value:
            self._value = self._reduce(self._value, value)
            self._peak = max(self._peak, value)
        self._last_step = step
        self._count += count
        if self._count < self.width:
            return False
        self.steps.append(step)
        self.values.append(self._value)
        self._lowest = min(self._lowest, self._value)
        self.tops.append(self._peak)
        self._count = 0
        if len(self.steps) == MAX_BUCKETS:
            self._merge_neighbors()
        return True

    def repeats_from(self) -> float:
        """Return the step after which windows show a repetition only, or infinity."""
        is_over = self._last_step > self._quiet_until
        if not self.values or is_over or self.values[-1] > self._ceiling:
            return inf
        return self.fell_at - self._tooth_steps / 2

    def _end_tooth(self, step: float, value: float) -> None:
        is_tooth = self._top - self._base >= MIN_TOOTH_RATIO * (self._ceiling - value)
        if step > self._quiet_until or is_tooth:
            self._ceiling = self._top
            self._tooth_steps = step - self._base_step
        self.fell_at = step
        self._quiet_until = step + MAX_REPETITION_RATIO * self._tooth_steps
        self._base = self._top = value
        self._base_step = step

    def _merge_neighbors(self) -> None:
        # the step of a pair is that of its later bucket
        self.steps = self.steps[1::2]
        self.values = list(map(self._reduce, self.values[0::2], self.values[1::2]))
        self._lowest = min(self.values)
        self.tops = list(map(max, self.tops[0::2], self.tops[1::2]))
        self.lines = RunningLeastSquares()
        self.width *= 2
