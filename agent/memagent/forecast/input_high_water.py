"""Input high-water model: growth of a host's floor that the largest input so far explains.

malloc returns little memory, so a host's floor follows the largest input so far.

1. A series of the largest input so far runs next to the floor's, in the same buckets.
2. Inputs explain the floor's growth if they grew over the same stretch, and a line through the
   largest input, or its square (attention), fits about as well as a line through the steps
   (MAX_RESIDUAL_RATIO). If both grow evenly, they can't be separated; inputs are the simpler
   reason. A leak continues while the largest input stays.
3. Inputs have settled if they haven't risen for PLATEAU_RATIO times their longest pause between two
   rises. Then the floor's growth up to the last rise is explained, and a leak has to show itself
   after it.
4. The line also predicts what a larger input would add to the floor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from memagent.forecast.bucketed_series import BucketedSeries
from memagent.forecast.running_statistics import RunningLeastSquares

MAX_RESIDUAL_RATIO = 1.2
"""Residual deviation of the fit by inputs, as a multiple of that by steps."""
POWERS = (1, 2)
"""Exponents of the input size: activations, and attention without a fused kernel."""
MIN_BUCKETS = 8
"""Buckets that a fit needs."""
PLATEAU_RATIO = 2
"""Inputs have settled after this multiple of their longest pause."""


class InputHighWaterModel:
    """Call `observe` for each input, and `add` whenever the floor's series gets a value."""

    __slots__ = ("_line", "_series", "largest")

    def __init__(self) -> None:
        self._series = BucketedSeries(max)
        self._line: tuple[float, float] | None = None
        """Power and slope of the last fit that explained the floor."""
        self.largest = 0.0

    def observe(self, input_size: float) -> None:
        self.largest = max(self.largest, input_size)

    def add(self, step: float, count: int = 1) -> None:
        # noise is infinite: a series that only rises has no teeth
        self._series.add(step, self.largest, inf, count)

    def clear(self) -> None:
        self._series.clear()
        self._line = None

    def explains(self, floor: BucketedSeries, since_step: float) -> bool:
        """Return True if inputs explain the floor (rule 2). False if they began later than it."""
        self._line = None
        if self._series.steps != floor.steps:
            return False
        start, end = bisect_left(floor.steps, since_step), self.settled_since or len(floor.steps)
        steps, floors = floor.steps[start:end], floor.values[start:end]
        sizes = self._series.values[start:end]
        if len(sizes) < MIN_BUCKETS or sizes[-1] <= sizes[0]:
            return False
        _, step_residual = _fit(steps, floors)
        fits = [(power, *_fit([size**power for size in sizes], floors)) for power in POWERS]
        power, slope, residual = min(fits, key=lambda fit: fit[2])
        if slope <= 0 or residual > MAX_RESIDUAL_RATIO * step_residual:
            return False
        self._line = power, slope
        return True

    @property
    def settled_since(self) -> int | None:
        """Return the bucket after the last rise, or None if more rises are expected (rule 3)."""
        sizes = self._series.values
        rises = [place for place in range(1, len(sizes)) if sizes[place] > sizes[place - 1]]
        longest = max((after - before for before, after in pairwise(rises)), default=1)
        last = rises[-1] if rises else 0
        return last + 1 if len(sizes) - last > PLATEAU_RATIO * longest + 1 else None

    def future_growth(self, largest_input: float | None) -> float | None:
        """Return the bytes that an input of this size would add, or None if unknown (rule 4)."""
        if largest_input is None or self._line is None:
            return None
        power, slope = self._line
        return float(slope * max(0.0, largest_input**power - self.largest**power))


def _fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return slope and residual deviation."""
    return RunningLeastSquares(x, y).fit(0, len(x))
