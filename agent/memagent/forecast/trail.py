"""A series of any length in bounded memory: equal buckets that double in width when there are too many of them.

Each bucket keeps one value of its steps, the lowest (for a floor: what a saw tooth always comes back to) or the highest (for peaks).
"""

from __future__ import annotations

from collections.abc import Callable

MOST_BUCKETS = 128


class Trail:
    """`keep` is `min` or `max`. `add` returns whether a bucket was completed, so that there is something new to look at."""

    __slots__ = ("_count", "_keep", "_last_step", "_value", "steps", "values", "width")

    def __init__(self, keep: Callable[[float, float], float]) -> None:
        self._keep = keep
        self.steps: list[float] = []
        """Last step of each bucket."""
        self.values: list[float] = []
        self.width = 1
        self._count = 0
        self._value = 0.0
        self._last_step = 0.0

    def add(self, step: float, value: float) -> bool:
        self._value = value if self._count == 0 else self._keep(self._value, value)
        self._last_step = step
        self._count += 1
        if self._count < self.width:
            return False
        self.steps.append(self._last_step)
        self.values.append(self._value)
        self._count = 0
        if len(self.steps) == MOST_BUCKETS:
            self._halve()
        return True

    def clear(self) -> None:
        """Forget everything, as if the series began now."""
        self.steps.clear()
        self.values.clear()
        self.width, self._count = 1, 0

    def _halve(self) -> None:
        self.steps = self.steps[1::2]
        self.values = list(map(self._keep, self.values[0::2], self.values[1::2]))
        self.width *= 2
