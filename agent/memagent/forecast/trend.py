"""Is a series growing in a way that goes on, and how does its slope change? Answered over the longest recent stretch that shows it.

1. Windows: the whole trail, then shorter ones, each two thirds of the one before, all ending now. A warm-up or a late onset spoils the
   long ones and leaves the short.
2. In each, ordinary least squares. The line's rise over the window must stand above the scatter around it (7 standard deviations; a
   single jump has 6) and be more than a trifle of the limit.
3. Growth must be everywhere: the lowest value of each quarter rises from one to the next, with one step back allowed for noise.
4. Growth must go on: the slope of the newer half is at least 0.4 of the older one's.
5. The bend: the ratio q of the two halves' slopes is taken to go on, so that the slope x steps ahead is slope * exp(rate * x) with
   rate = ln(q) / half a window (Holt's multiplicative trend; exact for exponential saturation, 1 - exp(-t/tau), whose end it finds
   before it is reached). The error of q is that of the differences between the means of eight blocks. Within that error q is what the
   next longer window said, where that failed by rule 4 only, and else 1: growth in rare jumps does not read as a bend, and a few jumps
   of a growth that is dying out do not read as a line. Half of an acceleration is taken to go on, where it is not one of few jumps.
   A late onset looks like one: where two lines, the older of them flat, fit far better than one, the window begins with the newer.
6. The same once more with q lower by its error (`slow`): what a careful reader must still allow for.
7. A restless series, which before the window has twice fallen by half as much as it rose in it, is not growing but wandering.
8. A saw tooth that has fallen: windows within its repetition (`BucketedSeries.repeats_from`) are passed over; those that reach back into the
   tooth before see whether the low points rise too.
9. The longest window that passes is taken: most evidence.
10. The level from which it goes on is not the newest reading but the newer half's line, with what usually stands out above it: noise and
    teeth by their highest, since the first to reach the limit is the end; jumps (`jumps`) by half of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, inf, log, log1p, sqrt

from memagent.forecast.running_statistics import RunningLeastSquares, StepGrowth

SHORTEST = 16
"""Buckets that a window must hold."""
SHRINK = 2 / 3
RISE_OVER_SCATTER = 7.0
GOES_ON = 0.4
STEEPEST = 2.0
"""Largest q: what accelerates more is a jump, and not believed to do so again."""
FLATTEST = 0.25
"""Smallest q."""
DAMPED = 0.5
"""Share of an acceleration that is taken to go on."""
BETTER, FLAT = 0.25, 0.15
"""An onset: the squares that two lines leave as a share of one line's, and the older slope as a share of the newer one's."""
FEW_JUMPS = 0.3
"""Error by jumps above which neither an onset nor an acceleration is read from them."""
BLOCKS = 8
BELIEVED_ERRORS = 0.5
RESTLESS_FALLS = 2


@dataclass(frozen=True)
class Trend:
    """Growth of one series. `slope` is per step, now, with its standard `error`; it changes by the factor exp(rate) a step."""

    slope: float
    error: float
    rate: float
    slow_slope: float
    slow_rate: float
    since_step: float
    watched_steps: float
    rise: float
    jump: float
    jump_error: float
    at_step: float
    level: float

    def level_at(self, step: float) -> float:
        """What the series is expected to reach at `step`, with what usually stands out above its line."""
        return self.level + growth_in(step - self.at_step, self.slope, self.rate)


def steps_until(headroom: float, slope: float, rate: float) -> float:
    """Steps until growth at `slope`, changing by exp(rate) a step, has used up `headroom`; infinity where it never does."""
    if headroom <= 0:
        return 0.0
    if slope <= 0:
        return inf
    bend = headroom * rate / slope
    if bend <= -1:
        return inf
    return headroom / slope if abs(bend) < 1e-6 else log1p(bend) / rate


def growth_in(steps: float, slope: float, rate: float) -> float:
    """How much a series grows in so many steps: the inverse of `steps_until`."""
    return (
        slope * steps if abs(rate * steps) < 1e-9 else slope * expm1(min(rate * steps, 50.0)) / rate
    )


def find_trend(
    steps: Sequence[float],
    values: Sequence[float],
    trifle: float,
    *,
    tops: Sequence[float] | None = None,
    repeats_from: float = inf,
) -> Trend | None:
    """The trend of the newest part of a series, or None. `trifle` is a rise that does not matter, in the values' unit.

    Windows that begin after step `repeats_from` are not looked at.
    """
    size = float(len(steps))
    if size < SHORTEST or values[-1] - min(values) < trifle:
        return None
    lines: RunningLeastSquares | None = None
    rate = 0.0
    while size >= SHORTEST:
        start = len(steps) - int(size)
        if steps[start] > repeats_from:
            return None
        size *= SHRINK
        if not _rises_everywhere(values, start, trifle):
            continue
        lines = lines or RunningLeastSquares(steps, values)
        window = _Window(lines, values, start)
        if window.rises_above_scatter(trifle):
            if (
                window.newer >= GOES_ON * window.older
                and _falls(values[: start + 1], window.rise / 2) < RESTLESS_FALLS
            ):
                return window.trend(rate, tops or values)
            if window.newer > 0:
                rate = min(0.0, window.rate(window.newer / window.older))
    return None


class _Window:
    """The end of a series from `start`."""

    __slots__ = (
        "_lines",
        "_start",
        "_values",
        "jumps",
        "newer",
        "older",
        "rise",
        "scatter",
        "slope",
        "watched",
    )

    def __init__(self, lines: RunningLeastSquares, values: Sequence[float], start: int) -> None:
        self._lines, self._start, self._values = lines, start, values
        self.watched = lines.steps[-1] - lines.steps[start]
        self.jumps = StepGrowth()
        self.slope = self.scatter = self.older = self.newer = self.rise = 0.0

    def rises_above_scatter(self, trifle: float) -> bool:
        """Rule 2."""
        start, end = self._start, len(self._values)
        if self.watched <= 0:
            return False
        self.slope, self.scatter = self._lines.fit(start, end)
        self.rise = self.slope * self.watched
        if self.rise < max(RISE_OVER_SCATTER * self.scatter, trifle):
            return False
        middle = (start + end) // 2
        self.older, _ = self._lines.fit(start, middle + 1)
        self.newer, _ = self._lines.fit(middle, end)
        return self.newer > 0

    def rate(self, q: float) -> float:
        """Change of the slope a step, as the exponent of a factor, where the newer half's is q times the older one's."""
        return log(min(max(q, FLATTEST), STEEPEST)) * 2 / self.watched

    def trend(self, longer_rate: float, tops: Sequence[float]) -> Trend:
        """Rules 5 and 6; `longer_rate` is what the next longer window said."""
        self.jumps = StepGrowth.of(self._values[self._start :], self.rise)
        onset = self._onset() if self.jumps.error < FEW_JUMPS else None
        if onset is not None:
            return onset.trend(0.0, tops)
        error = self._error_of_ratio()
        raw = min(max(self.newer / self.older, FLATTEST), STEEPEST) if self.older > 0 else STEEPEST
        told = max(FLATTEST, exp(longer_rate * self.watched / 2))
        pull = max(BELIEVED_ERRORS * error, self.jumps.error)
        q = max(told, raw - pull) if raw > told else min(told, raw + pull)
        if self.jumps.error > FEW_JUMPS:
            q = min(q, 1.0)
        slow = max(FLATTEST, min(1.0, q, raw - error))
        values = self._values[self._start :]
        rate = self.rate(q) * (DAMPED if q > 1 else 1.0)
        return Trend(
            slope=self._slope_now(q),
            error=2 * self.scatter * sqrt(12 / len(values)) / self.watched
            + 0.5 * error * self.slope,
            rate=rate,
            slow_slope=self._slope_now(slow),
            slow_rate=self.rate(slow),
            since_step=self._lines.steps[self._start],
            watched_steps=self.watched,
            rise=self.rise,
            jump=self.jumps.typical or max(after - before for before, after in pairwise(values)),
            jump_error=self.jumps.error,
            at_step=self._lines.steps[-1],
            level=self._level(tops, q),
        )

    def _level(self, tops: Sequence[float], q: float) -> float:
        """What the newest steps reach: the newer half's line, and above it what falls back again, or else half a jump."""
        steps, start, end = (
            self._lines.steps,
            (self._start + len(self._values)) // 2,
            len(self._values),
        )
        middle = sum(steps[start:end]) / (end - start)
        mean = self._values[0] + self._lines.mean(start, end)
        slope = self.slope * 2 * q / (1 + q)
        line = mean + slope * (steps[-1] - middle)
        if self.jumps.error > FEW_JUMPS:
            line = min(line, tops[-1])
        above, fall, top = 0.0, 0.0, tops[start]
        for i in range(start, end):
            fall = max(fall, top - self._values[i])
            above = max(above, tops[i] - mean - self.newer * (steps[i] - middle))
            top = max(top, tops[i]) if i > start else top
        if fall >= above / 2 or not self.jumps.typical:
            return line + above
        return max(tops[-1], line + self.jumps.typical / 2)

    def _onset(self) -> _Window | None:
        """The part that grows, where all before it is flat: two lines fit far better than one."""
        start, end = self._start, len(self._values)
        alone = (end - start) * self.scatter**2
        best, found = BETTER * alone, None
        stride = max(1, (end - start) // 12)
        for split in range(start + stride, end - SHORTEST // 2, stride):
            flat, before = self._lines.fit(start, split)
            growing, after = self._lines.fit(split, end)
            both = (split - start) * before**2 + (end - split) * after**2
            if flat < FLAT * growing and both < best:
                best, found = both, split
        if found is None:
            return None
        window = _Window(self._lines, self._values, found)
        return (
            window
            if window.rises_above_scatter(0.0) and window.newer >= GOES_ON * window.older
            else None
        )

    def _slope_now(self, q: float) -> float:
        newer = self.slope * 2 * q / (1 + q)  # halves with the ratio q and the mean `slope`
        return newer * (
            sqrt(q) if q < 1 else q ** (DAMPED / 2)
        )  # ... whose middle is a quarter of the window ago

    def _error_of_ratio(self) -> float:
        """Standard error of the ratio of two halves' slopes, by how the growth from block to block scatters around its own line."""
        size = (len(self._values) - self._start) / BLOCKS
        edges = [self._start + round(block * size) for block in range(BLOCKS + 1)]
        means = [self._lines.mean(a, b) for a, b in pairwise(edges)]
        growth = [after - before for before, after in pairwise(means)]
        mean = sum(growth) / len(growth)
        if mean <= 0:
            return 1.0
        _, scatter = RunningLeastSquares(range(len(growth)), growth).fit(0, len(growth))
        return min(
            1.0,
            max(
                self.jumps.error,
                scatter * sqrt(len(growth) / (len(growth) - 2)) / mean * sqrt(2 / 3.5),
            ),
        )


def _rises_everywhere(values: Sequence[float], start: int, trifle: float) -> bool:
    """Rule 3 for the window from `start`."""
    rise = values[-1] - values[start]
    if rise < trifle:
        return False
    end = len(values)
    quarter = (end - start) // 4
    lows = [
        min(values[begin : begin + quarter])
        for begin in (start, start + quarter, start + 2 * quarter, end - quarter)
    ]
    falls = [before - after for before, after in pairwise(lows)]
    return sum(fall >= 0 for fall in falls) <= 1 and max(falls) < 0.1 * rise


def _falls(values: Sequence[float], size: float) -> int:
    """How often a series fell by at least `size` from its highest since it last rose as much."""
    falls, falling = 0, False
    high = low = values[0]
    for value in values:
        if falling:
            low = min(low, value)
            if value >= low + size:
                falling, high = False, value
        else:
            high = max(high, value)
            if value <= high - size:
                falling, low = True, value
                falls += 1
    return falls
