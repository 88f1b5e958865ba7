"""Small running statistics that the forecaster needs beside its trails, each of constant size.

Least squares over any stretch of a short series, from running sums: many windows for the price of one.

Growth that comes in few jumps, as that of compiled graphs, caches and reports of an epoch: how big they are, and how little they say.

1. A jump is a change from bucket to bucket that stands above what the series falls by, and is a tenth of the largest at least.
2. StepGrowth matter where they make up half of the rise and a typical one (each weighted by its size) is A_JUMP of it or more.
3. What n jumps say of the pace is off by sqrt(v / n), where v is the relative variance of their sizes and of the gaps between them:
   0 for one report of each epoch, 2 for jumps at random. The ratio of two halves is off by twice that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite, sqrt
from operator import mul

_DECAY = 0.98
"""The largest excess is forgotten at this rate a step: a spike of a hundred steps ago counts an eighth."""
_ENOUGH = 30


class StepClock:
    """Seconds a step takes, by an average that forgets."""

    __slots__ = ("_last", "_step_s")

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._step_s: float | None = None

    def tick(self, step: int, time_s: float | None) -> None:
        if time_s is None or not isfinite(time_s):
            return
        if self._last is not None and step > self._last[0] and time_s >= self._last[1]:
            took = (time_s - self._last[1]) / (step - self._last[0])
            self._step_s = took if self._step_s is None else 0.95 * self._step_s + 0.05 * took
        self._last = (step, time_s)

    def seconds(self, steps: float) -> float | None:
        return None if self._step_s is None else steps * self._step_s


class Excess:
    """How far steps peak above their floor: the recent largest, and how it follows the size of the input (least squares)."""

    __slots__ = ("_n", "_sx", "_sxx", "_sxy", "_sy", "_syy", "recent")

    def __init__(self) -> None:
        self.recent = 0.0
        self._n = 0
        self._sx = self._sy = self._sxx = self._sxy = self._syy = 0.0

    def add(self, excess: float, input_size: float | None) -> None:
        self.recent = max(excess, self.recent * _DECAY + excess * (1 - _DECAY))
        if input_size is None:
            return
        x, y = float(input_size), float(excess)
        self._n += 1
        self._sx += x
        self._sy += y
        self._sxx += x * x
        self._sxy += x * y
        self._syy += y * y

    @property
    def follows_input(self) -> bool:
        """Whether the size of the input explains nearly all of the excess."""
        return self._correlation() > 0.9

    def at_input(self, size: float | None) -> float | None:
        """Excess that an input of `size` would cause, or None where that cannot be told."""
        if size is None or not self.follows_input:
            return None
        variance = self._n * self._sxx - self._sx**2
        slope = (self._n * self._sxy - self._sx * self._sy) / variance
        return (self._sy - slope * self._sx) / self._n + slope * size

    def _correlation(self) -> float:
        n = self._n
        if n < _ENOUGH:
            return 0.0
        vx, vy = n * self._sxx - self._sx**2, n * self._syy - self._sy**2
        if vx <= 1e-6 * n * self._sxx or vy <= 1e-6 * n * self._syy:  # as good as constant
            return 0.0
        return (n * self._sxy - self._sx * self._sy) / sqrt(vx * vy)


class RunningLeastSquares:
    """Straight lines through parts of one series. Sums are taken from the first point, so that large offsets cost no digits."""

    __slots__ = ("_first", "_x", "_xx", "_xy", "_y", "_yy", "steps")

    def __init__(self, steps: Sequence[float], values: Sequence[float]) -> None:
        self.steps = steps
        self._first = values[0]
        x = [step - steps[0] for step in steps]
        y = [value - values[0] for value in values]
        self._x, self._y = _running(x), _running(y)
        self._xx, self._xy, self._yy = (
            _running(map(mul, a, b)) for a, b in ((x, x), (x, y), (y, y))
        )

    def fit(self, start: int, end: int) -> tuple[float, float]:
        """Slope and residual standard deviation of the points from `start` to before `end`."""
        n = end - start
        x, y = self._x[end] - self._x[start], self._y[end] - self._y[start]
        xx = self._xx[end] - self._xx[start] - x * x / n
        if xx <= 0:
            return 0.0, 0.0
        xy = self._xy[end] - self._xy[start] - x * y / n
        yy = self._yy[end] - self._yy[start] - y * y / n
        slope = xy / xx
        return slope, sqrt(max(0.0, yy - slope * xy) / n)

    def mean(self, start: int, end: int) -> float:
        """Mean of the values from `start` to before `end`, less the first value of all."""
        return (self._y[end] - self._y[start]) / (end - start)


def _running(values: Sequence[float] | map[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))


A_JUMP = 0.03


@dataclass(frozen=True)
class StepGrowth:
    """The size of a typical jump, and the error of a ratio of two halves' slopes that comes of their number. Zeros where there are none."""

    typical: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float], rise: float) -> StepGrowth:
        changes = [after - before for before, after in pairwise(values)]
        falls = [-change for change in changes if change < 0]
        noise = max(3 * sum(falls) / len(falls) if falls else 0.0, 0.1 * max(changes))
        at = [place for place, change in enumerate(changes) if change > noise]
        sizes = [changes[place] for place in at]
        total = sum(sizes)
        n = len(at)
        squares = sum(size * size for size in sizes)
        if n < 3 or total < rise / 2 or squares < A_JUMP * rise * total:
            return cls()
        gaps = [after - before for before, after in pairwise(at)]
        vary = (
            n * squares / total**2
            - 1
            + (n - 1) * sum(gap * gap for gap in gaps) / sum(gaps) ** 2
            - 1
        )
        return cls(squares / total, 2 * sqrt(max(0.0, vary) / n))
