"""A series of any length in bounded memory: equal buckets that double in width when there are too many of them.

1. Each bucket keeps one value of its steps, the lowest (for a floor: what a saw tooth always comes back to) or the highest (for peaks).
2. At MOST_BUCKETS, neighbours are merged and the width doubles: between half and all of them are in use, whatever the length.
3. A fall by more than half of what the series had risen ends a *tooth*. Its height and length are remembered: a series that rises
   again, no higher and not for much longer, says nothing new. A longer rise is no repetition, so a spike at the start hides no leak.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

MOST_BUCKETS = 128
FALL = 0.5
"""Share of the rise that must be lost to end a tooth."""
BUMP = 0.25
"""A rise smaller than this share of the last tooth is part of its fall, or noise at its foot."""
REPEAT = 1.5
"""A rise of up to this many times the last tooth's length may be its repetition."""


class BucketedSeries:
    """`keep` is `min` or `max`. `add` returns whether a bucket was completed, so that there is something new to look at."""

    __slots__ = (
        "_base", "_base_step", "_ceiling", "_count", "_keep", "_last_step", "_peak", "_quiet_until", "_tooth_steps", "_top", "_value",
        "fell_at", "steps", "tops", "values", "width",
    )  # fmt: skip

    def __init__(self, keep: Callable[[float, float], float]) -> None:
        self._keep = keep
        self.steps: list[float] = []
        """Last step of each bucket."""
        self.values: list[float] = []
        self.tops: list[float] = []
        """Highest value of each bucket, whatever is kept."""
        self.clear()

    def clear(self) -> None:
        """Forget everything, as if the series began now."""
        self.steps.clear()
        self.values.clear()
        self.tops.clear()
        self.width, self._count = 1, 0
        self._value = self._peak = self._last_step = 0.0
        self._base, self._top, self._base_step = inf, -inf, 0.0
        self._ceiling = self.fell_at = self._quiet_until = -inf
        self._tooth_steps = 0.0

    def add(self, step: float, value: float, trifle: float) -> bool:
        """Take the value at `step`; falls of less than `trifle` are noise."""
        if value < self._top - trifle and value < self._top - FALL * (self._top - self._base):
            self._end_tooth(step, value)
        self._top = max(self._top, value)
        if value < self._base:
            self._base, self._base_step = value, step
        if self._count == 0:
            self._value = self._peak = value
        else:
            self._value, self._peak = self._keep(self._value, value), max(self._peak, value)
        self._last_step = step
        self._count += 1
        if self._count < self.width:
            return False
        self.steps.append(self._last_step)
        self.values.append(self._value)
        self.tops.append(self._peak)
        self._count = 0
        if len(self.steps) == MOST_BUCKETS:
            self._halve()
        return True

    def repeats_from(self) -> float:
        """Windows that begin after this step see a repetition only; infinity where none of them does."""
        if (
            not self.values
            or self._last_step > self._quiet_until
            or self.values[-1] > self._ceiling
        ):
            return inf
        return self.fell_at - self._tooth_steps / 2

    def _end_tooth(self, step: float, value: float) -> None:
        if step > self._quiet_until or self._top - self._base >= BUMP * (self._ceiling - value):
            self._ceiling, self._tooth_steps = self._top, step - self._base_step
        self.fell_at, self._quiet_until = step, step + REPEAT * self._tooth_steps
        self._base = self._top = value
        self._base_step = step

    def _halve(self) -> None:
        self.steps = self.steps[1::2]
        self.values = list(map(self._keep, self.values[0::2], self.values[1::2]))
        self.tops = list(map(max, self.tops[0::2], self.tops[1::2]))
        self.width *= 2
