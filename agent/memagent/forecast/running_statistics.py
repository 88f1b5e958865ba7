"""Small statistics of the forecaster: pace, excess over the floor, straight lines, step growth.

Growth in few jumps, as by compiled graphs, caches and reports at the end of an epoch
(`StepGrowth`):

1. A jump is a change between buckets that's larger than three times the mean fall, and at least a
   tenth of the largest change.
2. Jumps matter if they make up half of the rise, and a typical one (weighted by size) is at least
   MIN_JUMP_RATIO of it.
   Jumps of equal size in most buckets are a straight line.
3. The pace that n jumps show has the relative error sqrt(v / n). v is the relative variance of
   their sizes and of the gaps between them: 0 for one report per epoch, 2 for jumps at random. To
   it comes REGULARITY_VARIANCE / n, since few regular jumps may be regular by chance; fewer than
   three count as random. The ratio of two halves' slopes has twice that error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import expm1, inf, isfinite, log1p, sqrt
from operator import mul, sub

import msgspec

_EXCESS_DECAY = 0.98
"""Factor per step by which the largest excess is forgotten: after a hundred steps 1/8 is left."""
_MIN_INPUTS = 30
"""Inputs needed to relate the excess to them."""
_MIN_CORRELATION = 0.9
"""Correlation from which the input explains the excess."""
STRAIGHT_SHARE, STRAIGHT_VARIANCE = 0.7, 0.1
"""Share of the changes that are jumps, and their variance, of straight growth. Set on half of the
real GPU runs: no program of the benchmark changes by it."""
MAX_FALLS = 2
"""Falls before a window from which a series wanders."""
MIN_JUMP_RATIO = 0.03
"""A typical jump's share of the rise from which jumps matter."""
RANDOM_VARIANCE, REGULARITY_VARIANCE = 2.0, 0.5
"""Relative variances by rule 3."""


class StepClock:
    """Seconds per step, as an exponential average."""

    __slots__ = ("_last", "_step_s")

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._step_s: float | None = None

    def tick(self, step: int, time_s: float | None, count: int = 1) -> None:
        """Take the time of the last of `count` steps."""
        if time_s is None or not isfinite(time_s):
            return
        # a clock that was set back gives no pace
        if self._last is not None and step > self._last[0] and time_s >= self._last[1]:
            step_s = (time_s - self._last[1]) / (step - self._last[0])
            old = 0.95**count
            self._step_s = (
                step_s if self._step_s is None else old * self._step_s + (1 - old) * step_s
            )
        self._last = (step, time_s)

    def seconds(self, steps: float) -> float | None:
        return None if self._step_s is None else steps * self._step_s


class ExcessStatistics:
    """Excess of steps' peaks over their floor: the recent maximum, and how it follows the input.

    The fit by input size is least squares.
    """

    __slots__ = ("_n", "_sx", "_sxx", "_sxy", "_sy", "_syy", "recent")

    def __init__(self) -> None:
        self.recent = 0.0
        self._n = 0
        self._sx = self._sy = self._sxx = self._sxy = self._syy = 0.0

    def add(self, excess: float, input_size: float | None, count: int = 1) -> None:
        """Add the excess of `count` steps."""
        old = _EXCESS_DECAY**count
        self.recent = max(excess, self.recent * old + excess * (1 - old))
        if input_size is None:
            return
        x, y = float(input_size), float(excess)
        self._n += count
        self._sx += count * x
        self._sy += count * y
        self._sxx += count * x * x
        self._sxy += count * x * y
        self._syy += count * y * y

    @property
    def follows_input(self) -> bool:
        """Return True if the input size explains nearly all of the excess."""
        return self._correlation() > _MIN_CORRELATION

    def at_input(self, size: float | None) -> float | None:
        """Return the excess that an input of `size` would cause, or None if unknown."""
        if size is None or not self.follows_input:
            return None
        variance = self._n * self._sxx - self._sx**2
        slope = (self._n * self._sxy - self._sx * self._sy) / variance
        return (self._sy - slope * self._sx) / self._n + slope * size

    def _correlation(self) -> float:
        n = self._n
        if n < _MIN_INPUTS:
            return 0.0
        vx, vy = n * self._sxx - self._sx**2, n * self._syy - self._sy**2
        if vx <= 1e-6 * n * self._sxx or vy <= 1e-6 * n * self._syy:  # practically constant
            return 0.0
        return (n * self._sxy - self._sx * self._sy) / sqrt(vx * vy)


class RunningLeastSquares:
    """Straight lines through any stretch of one series, each in constant time by running sums.

    Sums are relative to the first point, so that large offsets cost no precision.
    """

    __slots__ = ("_sums", "steps")

    def __init__(self, steps: Sequence[float] = (), values: Sequence[float] = ()) -> None:
        self._sums: tuple[list[float], ...] = ([0.0], [0.0], [0.0], [0.0], [0.0])
        """Sums of x, y, x * x, x * y, y * y."""
        self.steps = steps
        if steps:
            self.extend(steps, values)

    def extend(self, steps: Sequence[float], values: Sequence[float]) -> None:
        """Add the points that are new in a series: nothing else in it may have changed."""
        old = len(self._sums[0]) - 1
        self.steps = steps
        if old == len(steps):
            return
        first_x, first_y = steps[0], values[0]
        x = [step - first_x for step in steps[old:]]
        y = [value - first_y for value in values[old:]]
        products = (x, y, map(mul, x, x), map(mul, x, y), map(mul, y, y))
        for sums, new in zip(self._sums, products, strict=True):
            sums.extend(accumulate(new, initial=sums.pop()))

    def fit(self, start: int, end: int) -> tuple[float, float]:
        """Return slope and residual standard deviation of the points in [start, end)."""
        n = end - start
        x_sums, y_sums, xx_sums, xy_sums, yy_sums = self._sums
        x, y = x_sums[end] - x_sums[start], y_sums[end] - y_sums[start]
        xx = xx_sums[end] - xx_sums[start] - x * x / n
        if xx <= 0:
            return 0.0, 0.0
        xy = xy_sums[end] - xy_sums[start] - x * y / n
        yy = yy_sums[end] - yy_sums[start] - y * y / n
        slope = xy / xx
        # max: rounding may make the residual of a perfect fit negative
        return slope, sqrt(max(0.0, yy - slope * xy) / n)

    def mean(self, start: int, end: int) -> float:
        """Return the mean of the values in [start, end), minus the first value of the series."""
        sums = self._sums[1]
        return (sums[end] - sums[start]) / (end - start)


def running_medians(values: Sequence[float], count: int) -> list[float]:
    """Return the median of each value and its neighbors, `count` in all, fewer at either end."""
    reach = count // 2
    medians = []
    for place in range(len(values)):
        near = sorted(values[max(0, place - reach) : place + reach + 1])
        medians.append(near[len(near) // 2])
    return medians


def count_falls(values: Sequence[float], size: float) -> int:
    """Return how often a series fell by `size` from its maximum since it last rose as much."""
    falls, is_falling = 0, False
    high = low = values[0]
    for value in values:
        if is_falling:
            low = min(low, value)
            if value >= low + size:
                is_falling = False
                high = value
        else:
            high = max(high, value)
            if value <= high - size:
                is_falling = True
                low = value
                falls += 1
    return falls


def rises_everywhere(values: Sequence[float], start: int, min_rise: float) -> bool:
    """Return True if the values rise in each quarter from `start` on (rule 3 of `trend`)."""
    rise = values[-1] - values[start]
    if rise < min_rise:
        return False
    end = len(values)
    quarter = (end - start) // 4
    begins = (start, start + quarter, start + 2 * quarter, end - quarter)
    # minima, so that a spike doesn't count as a rise
    first, second, third, last = [min(values[begin : begin + quarter]) for begin in begins]
    falls = (first - second, second - third, third - last)
    return max(falls) < 0.1 * rise and sum(fall >= 0 for fall in falls) <= 1


def wanders(values: Sequence[float], start: int, rise: float) -> bool:
    """Return True if the values fell by half of `rise` more than once before `start` (rule 7)."""
    # a model that is loaded and dropped before the training falls further than a leak rises
    before = values[: start + 1]
    newer = values[(start + len(values)) // 2 :]
    return count_falls(before, rise / 2) >= MAX_FALLS and min(newer) <= max(before)


def steps_until(headroom: float, slope: float, rate: float) -> float:
    """Return the steps until growth uses up `headroom`, or infinity if it never does.

    The slope changes by the factor exp(rate) a step.
    """
    if headroom <= 0:
        return 0.0
    if slope <= 0:
        return inf
    bend = headroom * rate / slope
    if bend <= -1:
        return inf
    return headroom / slope if abs(bend) < 1e-6 else log1p(bend) / rate


def growth_in(steps: float, slope: float, rate: float) -> float:
    """Return the growth in `steps`: the inverse of `steps_until`."""
    if abs(rate * steps) < 1e-9:
        return slope * steps
    # min: exp overflows far ahead
    return slope * expm1(min(rate * steps, 50.0)) / rate


class StepGrowth(msgspec.Struct, frozen=True, gc=False):
    """Growth by jumps. Zeros if a series doesn't grow that way."""

    typical: float = 0.0
    """Size of a typical jump."""
    error: float = 0.0
    """Error of the ratio of two halves' slopes that comes of the number of jumps."""
    mean: float = 0.0
    """Mean size of the jumps."""
    gap: float = 0.0
    """Mean number of values from one jump to the next."""
    last: int = 0
    """Place of the newest jump: of the value before it."""
    variance: float = 0.0
    """Relative variance of the sizes and gaps."""

    @classmethod
    def of(cls, values: Sequence[float], rise: float) -> StepGrowth:
        """Return the step growth of a series that rises by `rise`."""
        changes = list(map(sub, values[1:], values))
        largest = max(changes)
        if largest < MIN_JUMP_RATIO * rise:
            return cls()  # so no typical jump is larger: most growth is straight
        falls = [-change for change in changes if change < 0]
        noise = max(3 * sum(falls) / len(falls) if falls else 0.0, 0.1 * largest)
        places = [place for place, change in enumerate(changes) if change > noise]
        sizes = [changes[place] for place in places]
        n, total = len(sizes), sum(sizes)
        squares = sum(map(mul, sizes, sizes))
        if not n or total < rise / 2 or squares < MIN_JUMP_RATIO * rise * total:
            return cls()
        if n < 3:
            return cls(squares / total, 2 * sqrt(RANDOM_VARIANCE / n))
        gaps = list(map(sub, places[1:], places))
        gap_squares = sum(map(mul, gaps, gaps))
        # of the sizes, plus of the gaps: rule 3
        variance = n * squares / total**2 - 1 + (n - 1) * gap_squares / sum(gaps) ** 2 - 1
        # a line in few buckets consists of changes that are all above the noise
        if n >= STRAIGHT_SHARE * len(changes) and variance < STRAIGHT_VARIANCE:
            return cls()
        variance = max(0.0, variance)
        return cls(
            squares / total,
            2 * sqrt((variance + REGULARITY_VARIANCE / n) / n),
            mean=total / n,
            gap=sum(gaps) / len(gaps),
            last=places[-1],
            variance=variance,
        )
