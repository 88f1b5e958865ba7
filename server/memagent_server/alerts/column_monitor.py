"""Tests of one column's values: too high or low for a time, not finite, a spike, no progress. Pure.

1. `above` and `below` hold for a value beyond `value` since `for_s` seconds.
2. `not_finite` holds for NaN and infinity. The other tests skip those.
3. `spike` holds for a value further than `value` deviations above the median of the WINDOW values
   before it. A deviation is what the median absolute deviation is to a normal distribution; it has
   MIN_SPIKE_HISTORY values first, and a constant column has DEVIATION_FLOOR of its median.
4. `no_new_low` and `no_new_high` hold if no value has been lower or higher than the best by more
   than a share of `value`, for `for_s` seconds.
5. Missing values decide nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

ColumnTest = Literal["above", "below", "not_finite", "spike", "no_new_low", "no_new_high"]
WINDOW = 128
MIN_SPIKE_HISTORY = 32
NORMAL_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
DEVIATION_FLOOR = 1e-6


@dataclass(frozen=True)
class ColumnCheck:
    """A project's rule about a column. `value` and `for_s` are those of its test."""

    name: str
    column: str
    test: str
    value: float = 0.0
    for_s: float = 0.0
    level: str = "warning"


@dataclass(frozen=True)
class ColumnFinding:
    """A value for which a rule's test holds; `reference` is the bound, median or best value."""

    rule: ColumnCheck
    step: int
    value: float
    reference: float | None = None
    deviations: float | None = None
    reference_step: int | None = None
    lasts_s: float | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the facts of an alert. JSON has no NaN: values that aren't finite become text."""
        rule = self.rule
        return {
            "name": rule.name,
            "column": rule.column,
            "test": rule.test,
            "threshold": rule.value,
            "for_s": rule.for_s,
            "step": self.step,
            "value": self.value if math.isfinite(self.value) else str(self.value),
            "reference": self.reference,
            "reference_step": self.reference_step,
            "deviations": self.deviations,
            "lasts_s": self.lasts_s,
        }


class ColumnMonitor:
    """One rule on one stream; `update` takes its values in order."""

    def __init__(self, rule: ColumnCheck) -> None:
        self.rule = rule
        self._since: float | None = None
        """Time of the first value of those beyond the bound."""
        self._best: tuple[float, int, float] | None = None
        """Value, step and time."""
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def update(self, step: int, time_s: float, value: float | None) -> ColumnFinding | None:
        """Return a finding if the test holds for this value."""
        rule = self.rule
        if value is None:
            return None
        # a NaN among the values would never leave a median or a best value again
        if rule.test == "not_finite" or not math.isfinite(value):
            holds = rule.test == "not_finite" and not math.isfinite(value)
            return ColumnFinding(rule, step, value) if holds else None
        if rule.test == "spike":
            return self._spike(step, value)
        if rule.test in ("above", "below"):
            return self._beyond(step, time_s, value)
        return self._stagnation(step, time_s, value)

    def _beyond(self, step: int, time_s: float, value: float) -> ColumnFinding | None:
        rule = self.rule
        if not (value > rule.value if rule.test == "above" else value < rule.value):
            self._since = None
            return None
        self._since = time_s if self._since is None else self._since
        lasts_s = time_s - self._since
        if lasts_s < rule.for_s:
            return None
        return ColumnFinding(rule, step, value, rule.value, lasts_s=lasts_s)

    def _stagnation(self, step: int, time_s: float, value: float) -> ColumnFinding | None:
        rule, best = self.rule, self._best
        sign = -1.0 if rule.test == "no_new_low" else 1.0
        if best is None or sign * (value - best[0]) > rule.value * abs(best[0]):
            self._best = (value, step, time_s)
            return None
        lasts_s = time_s - best[2]
        if lasts_s < rule.for_s:
            return None
        return ColumnFinding(rule, step, value, best[0], reference_step=best[1], lasts_s=lasts_s)

    def _spike(self, step: int, value: float) -> ColumnFinding | None:
        finding = None
        # decided before the value joins the past: it must not hide itself
        if len(self._recent) >= MIN_SPIKE_HISTORY:
            median = _median(self._sorted)
            deviation = NORMAL_DEVIATION * _median(sorted(abs(x - median) for x in self._sorted))
            deviation = max(deviation, DEVIATION_FLOOR * abs(median), 1e-300)
            if (value - median) / deviation > self.rule.value:
                deviations = min((value - median) / deviation, 1e12)
                finding = ColumnFinding(self.rule, step, value, median, deviations)
        self._recent.append(value)
        insort(self._sorted, value)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        return finding


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
