"""What a process keeps because its largest input needed it: malloc gives little back, so a host's floor follows the largest input so far.

1. Beside the floor's trail runs one of the largest input so far, in the same buckets.
2. Growth of the floor is explained by inputs where these grew over the same stretch, and a line through the largest input, or through
   its square (attention), leaves about as little as a line through the steps does (SAME). Where both grow evenly nobody can tell them
   apart, and inputs, which are seen to grow, are the simpler reason. A leak goes on while the largest input stays.
3. Inputs that have stayed for longer than they ever did between two rises (STAYS times) are taken to stay. Then the floor's growth up to
   their last rise is what is asked about, and a leak has to show itself in what comes after.
4. The line also says what a larger input would still make the process keep.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from memagent.forecast.bucketed_series import BucketedSeries
from memagent.forecast.running_statistics import RunningLeastSquares

SAME = 1.2
"""Standard deviation that the largest input may leave, as a multiple of what the steps leave."""
POWERS = (1, 2)
FEWEST = 8
"""Buckets that a line needs."""
STAYS = 2


class InputHighWaterModel:
    """`see` each step's input, `add` whenever the floor's trail takes a value; then `explains` tells what its growth is of."""

    __slots__ = ("_line", "_trail", "largest")

    def __init__(self) -> None:
        self._trail = BucketedSeries(max)
        self._line: tuple[float, float] | None = None
        """Power and slope of what explained the floor when last asked."""
        self.largest = 0.0

    def see(self, input_size: float) -> None:
        self.largest = max(self.largest, input_size)

    def add(self, step: float) -> None:
        self._trail.add(step, self.largest, inf)

    def clear(self) -> None:
        self._trail.clear()
        self._line = None

    def explains(self, floor: BucketedSeries, since_step: float) -> bool:
        """Rule 2; false where inputs were not known for as long as the floor was watched."""
        self._line = None
        if self._trail.steps != floor.steps:
            return False
        start, end = bisect_left(floor.steps, since_step), self.stayed_since or len(floor.steps)
        steps, sizes, floors = (
            floor.steps[start:end],
            self._trail.values[start:end],
            floor.values[start:end],
        )
        if len(sizes) < FEWEST or sizes[-1] <= sizes[0]:
            return False
        _, left_by_steps = _fit(steps, floors)
        found = [(power, *_fit([size**power for size in sizes], floors)) for power in POWERS]
        power, slope, left = min(found, key=lambda one: one[2])
        if slope <= 0 or left > SAME * left_by_steps:
            return False
        self._line = power, slope
        return True

    @property
    def stayed_since(self) -> int | None:
        """Rule 3: the bucket after the last rise, or None where another is to be expected."""
        sizes = self._trail.values
        rises = [place for place in range(1, len(sizes)) if sizes[place] > sizes[place - 1]]
        longest = max((after - before for before, after in pairwise(rises)), default=1)
        last = rises[-1] if rises else 0
        return last + 1 if len(sizes) - last > STAYS * longest + 1 else None

    def to_come(self, largest_input: float | None) -> float | None:
        """Rule 4: bytes that an input of this size would add to the floor, or None where that cannot be told."""
        if largest_input is None or self._line is None:
            return None
        power, slope = self._line
        return float(slope * max(0.0, largest_input**power - self.largest**power))


def _fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and what is left."""
    return RunningLeastSquares(x, y).fit(0, len(x))
