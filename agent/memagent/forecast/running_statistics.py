"""Small running statistics that the forecaster needs beside its trails, each of constant size."""

from __future__ import annotations

from math import isfinite, sqrt

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
