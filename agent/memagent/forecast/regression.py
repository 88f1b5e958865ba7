"""Least squares over any stretch of a short series, from running sums: many windows for the price of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from operator import mul


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
