"""Trend: does a series grow in a way that continues, and how does its slope change?

The answer comes from the longest recent window that shows growth.

1. Windows are the whole series, then shorter ones, each two thirds of the one before, all ending
   now. A warm-up or a late onset spoils the long ones and leaves the short ones.
2. Each window is fitted by ordinary least squares. The line's rise over the window must exceed the
   scatter around it (7 standard deviations, of which a single jump has 6; 12 in a run's first
   readings) and a minimum share of the limit.
3. Growth must be everywhere: the minimum of each quarter is above the one before, with one step
   back allowed for noise.
4. Growth must continue: the newer half's slope is at least 0.4 of the older half's. It has stopped
   if its newest pause is longer than a tenth of the window, than 24 steps, and than 1.5 times any
   earlier one since its first rise. `Trend.expires_step` says when, so that nobody waits for the
   next fit.
5. The bend: the ratio q of the two halves' slopes is assumed to continue. So the slope x steps
   ahead is slope * exp(rate * x) with rate = ln(q) / half a window. This is Holt's multiplicative
   trend. For exponential saturation, 1 - exp(-t/tau), it's exact, and finds its end before it is
   reached.
   - The error of q is that of the differences between the means of eight blocks.
   - Within that error, q is the next longer window's if that failed by rule 4 only, and else 1. So
     growth in rare jumps doesn't look like a bend, nor a few jumps of dying growth like a line.
   - Half of an acceleration is assumed to continue, unless it's one of few jumps.
   - A late onset looks like acceleration. If two lines, the older one flat, fit far better than
     one, the window begins with the newer line.
6. A slow reading has q lower by its error: growth may die out that fast.
7. A series that has fallen twice before the window, by half the window's rise, wanders and isn't
   growing, unless the window's newer half is above all that came before.
8. After the fall of a saw tooth, windows within its repetition (`BucketedSeries.repeats_from`) are
   skipped. Windows that reach back into the tooth show whether the low points rise, too.
9. The longest window that passes is used, since it has most evidence; a shorter one if that grows
   by a few irregular jumps only, since growth after a jump may be straight.
10. Growth continues from the newer half's line, not from the newest reading. Noise and teeth above
    the line add their maximum, as the first to reach the limit is the end. Jumps (`StepGrowth`) add
    half of one.
11. A whole device's readings are few, and taken at any moment of a step: shorter windows count,
    straight growth before jumps, and if no window shows growth, medians of neighbors.

All constants were fitted to the traces of the forecast benchmark (docs/forecast.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import exp, inf, log, sqrt
from operator import mul, sub

from memagent.forecast.running_statistics import (
    RunningLeastSquares,
    StepGrowth,
    rises_everywhere,
    running_medians,
    wanders,
)
from memagent.forecast.types import Trend

MIN_BUCKETS, MIN_BUCKETS_AT_FIRST = 16, 8
"""Buckets that a window must hold; in a series shorter than that, the whole of it counts."""
MIN_RISE_OVER_SCATTER, MIN_RISE_AT_FIRST, MIN_RISE_OF_DEVICE = 7.0, 12.0, 15.0
"""The second for windows below MIN_BUCKETS, of uncertain scatter; the third by rule 11."""
MIN_SLOPE_RATIO = 0.4
"""Newer half's slope over the older half's from which growth continues."""
MIN_PAUSE_STEPS, PAUSE_RATIO = 24, 0.1
"""Growth has stopped after this pause, in steps and as a share of the window. It may be noticed two
buckets late, so their width is subtracted."""
PAUSE_TOLERANCE = 1.5
"""Growth has stopped after this multiple of its longest pause."""
MIN_STEP_UP = 0.01
"""Share of the rise by which a value must exceed the highest before it to end a pause."""
MAX_Q = 2.0
"""Larger ratios are jumps, which aren't expected to repeat."""
MIN_Q = 0.25
"""Smaller ratios have stopped by rule 4, so only errors lead there."""
ACCELERATION_RATIO = 0.5
"""Share of an acceleration that's assumed to continue."""
MAX_ONSET_RESIDUAL = 0.25
"""An onset's squared residuals of two lines, as a share of one line's."""
MAX_ONSET_SLOPE = 0.15
"""An onset's older slope as a share of the newer one."""
MIN_ONSET_BEND = 0.93
"""Older half's slope over the newer one's, of the earliest onset that is tried."""
MAX_JUMP_ERROR = 0.3
"""Error by jumps above which neither an onset nor an acceleration is derived from them."""
MIN_GAP = 2.0
"""Buckets between jumps from which it matters when the next one comes."""
MAX_ALIKE_VARIANCE = 0.3
"""Relative variance of sizes and gaps up to which jumps are alike."""
BLOCKS = 8
"""Blocks whose growth shows the error of q."""
_FROM_MIDDLE = [block - (BLOCKS - 2) / 2 for block in range(BLOCKS - 1)]
"""Places of the growth from block to block, from their middle."""
_SQUARES_FROM_MIDDLE = sum(place**2 for place in _FROM_MIDDLE)
"""Sum of their squares."""
ERROR_WEIGHT = 0.5
"""Share of the error of q by which it is pulled towards the expected value."""
SHRINK_RATIO = 2 / 3
"""Length of a window over that of the next longer one."""
MAX_TRUSTED_JUMP_ERROR = 0.7
"""Growth by jumps with a larger error may have ended. Set on the real GPU runs of
`benchmarks.forecast.series`; no run of the generator that dies by jumps is lost by it."""
MEDIAN_READINGS = 7
"""Neighbours in a median. On half of the real GPU runs 5 find fewer leaks, and 9 page more often
where there is none."""


def find_trend(
    steps: Sequence[float],
    values: Sequence[float],
    min_rise: float,
    *,
    tops: Sequence[float] | None = None,
    repeats_from: float = inf,
    is_device: bool = False,
    lines: RunningLeastSquares | None = None,
) -> Trend | None:
    """Return the trend of the newest part of a series, or None.

    min_rise: a smaller rise doesn't matter. tops: the buckets' highest values. repeats_from: no
    window begins after this step. is_device: see rule 11. lines: those through an older part of the
    values, if any.
    """
    tops = tops or values
    if not is_device:
        return _longest(_trends(steps, values, min_rise, tops, repeats_from, MIN_BUCKETS, lines))
    least = MIN_BUCKETS_AT_FIRST
    trends = list(_trends(steps, values, min_rise, tops, repeats_from, least, lines))
    if not trends:
        # the medians only if need be: they lag by half their width, so growth would be told later
        medians = running_medians(values, MEDIAN_READINGS)
        trends = list(_trends(steps, medians, min_rise, tops, repeats_from, least))
    regular = (trend for trend in trends if trend.jump_error <= MAX_JUMP_ERROR)
    return next(regular, None) or _longest(iter(trends))


def _longest(trends: Iterator[Trend]) -> Trend | None:
    """Return the first trend by rule 9."""
    by_jumps: Trend | None = None
    for trend in trends:
        if trend.jump_error <= MAX_TRUSTED_JUMP_ERROR:
            return trend
        by_jumps = by_jumps or trend
    return by_jumps


def _trends(
    steps: Sequence[float],
    values: Sequence[float],
    min_rise: float,
    tops: Sequence[float],
    repeats_from: float,
    least: int,
    lines: RunningLeastSquares | None = None,
) -> Iterator[Trend]:
    """Yield the trend of each window that shows one, the longest first."""
    size = float(len(steps))
    least = min(least, len(steps))
    if least < MIN_BUCKETS_AT_FIRST or values[-1] - min(values) < min_rise:
        return
    longer_rate = 0.0
    while size >= least:
        start = len(steps) - int(size)
        if steps[start] > repeats_from:
            return
        size *= SHRINK_RATIO
        # The cheap test comes first: most windows of most series fail it.
        if not rises_everywhere(values, start, min_rise):
            continue
        lines = lines or RunningLeastSquares()
        lines.extend(steps, values)
        window = _Window(lines, values, start)
        if not window.rises_above_scatter(min_rise):
            continue
        if window.has_stopped():
            return
        continues = window.newer_slope >= MIN_SLOPE_RATIO * window.older_slope
        if continues and not wanders(values, start, window.rise):
            yield window.trend(longer_rate, tops)
        elif window.newer_slope > 0:
            # min: only a longer window that slows down leads to expect a bend
            longer_rate = min(0.0, window.rate_of(window.newer_slope / window.older_slope))


class _Window:
    """The part of a series from `start` to its end."""

    __slots__ = (
        "_lines",
        "_start",
        "_values",
        "expires_step",
        "jumps",
        "newer_slope",
        "older_slope",
        "pauses_after",
        "renewed_above",
        "rise",
        "scatter",
        "slope",
        "span_steps",
    )

    def __init__(self, lines: RunningLeastSquares, values: Sequence[float], start: int) -> None:
        self._lines = lines
        self._values = values
        self._start = start
        self.span_steps = lines.steps[-1] - lines.steps[start]
        self.jumps = StepGrowth()
        self.expires_step = self.pauses_after = self.renewed_above = inf
        self.slope = self.scatter = self.older_slope = self.newer_slope = self.rise = 0.0

    def rises_above_scatter(self, min_rise: float) -> bool:
        """Check rule 2."""
        start, end = self._start, len(self._values)
        if self.span_steps <= 0:
            return False
        slope, self.scatter = self._lines.fit(start, end)
        self.slope = slope
        self.rise = self.slope * self.span_steps
        clear = MIN_RISE_OVER_SCATTER
        if end - start < MIN_BUCKETS:
            clear = MIN_RISE_AT_FIRST if end < MIN_BUCKETS else MIN_RISE_OF_DEVICE
        if self.rise < max(clear * self.scatter, min_rise):
            return False
        middle = (start + end) // 2
        self.older_slope, _ = self._lines.fit(start, middle + 1)
        self.newer_slope, _ = self._lines.fit(middle, end)
        return self.newer_slope > 0

    def has_stopped(self) -> bool:
        """Return True if the newest pause is longer than growth ever paused (rule 4)."""
        steps, values = self._lines.steps, self._values
        step_up = MIN_STEP_UP * self.rise
        high, since, longest = values[self._start], self._start, 0.0
        above = high + step_up
        for place, value in enumerate(values[self._start + 1 :], self._start + 1):
            if value > above:
                if since > self._start:
                    longest = max(longest, steps[place] - steps[since])
                high, since = value, place
                above = high + step_up
        noticed_late = 2 * (steps[-1] - steps[-2]) - 1
        least = max(MIN_PAUSE_STEPS, PAUSE_RATIO * self.span_steps) - noticed_late
        usual = PAUSE_TOLERANCE * longest
        self.expires_step = steps[since] + max(least, usual)
        self.pauses_after = steps[since] + max(usual, 2 * (steps[-1] - steps[-2]))
        self.renewed_above = high + step_up
        return steps[-1] > self.expires_step

    def rate_of(self, q: float) -> float:
        """Return the rate at which the slope changes if the halves' slopes have the ratio q."""
        return log(min(max(q, MIN_Q), MAX_Q)) * 2 / self.span_steps

    def trend(self, longer_rate: float, tops: Sequence[float]) -> Trend:
        """Return the trend by rules 5 and 6. `longer_rate` is the next longer window's rate."""
        self.jumps = StepGrowth.of(self._values[self._start :], self.rise)
        bends = self.older_slope < MIN_ONSET_BEND * self.newer_slope
        onset = self._onset() if bends and self.jumps.error < MAX_JUMP_ERROR else None
        if onset is not None:
            return onset.trend(0.0, tops)
        error = self._ratio_error()
        raw = MAX_Q
        if self.older_slope > 0:
            raw = min(max(self.newer_slope / self.older_slope, MIN_Q), MAX_Q)
        # Pull the measured ratio towards the one that the longer window leads to expect.
        expected = max(MIN_Q, exp(longer_rate * self.span_steps / 2))
        pull = max(ERROR_WEIGHT * error, self.jumps.error)
        q = max(expected, raw - pull) if raw > expected else min(expected, raw + pull)
        if self.jumps.error > MAX_JUMP_ERROR:
            q = min(q, 1.0)
        slow_q = max(MIN_Q, min(1.0, q, raw - error))
        values = self._values[self._start :]
        slope_error = 2 * self.scatter * sqrt(12 / len(values)) / self.span_steps
        level, lag = self._level(tops, q)
        period = self._period()
        return Trend(
            slope=self._slope_now(q),
            error=slope_error + 0.5 * error * self.slope,
            rate=self.rate_of(q) * (ACCELERATION_RATIO if q > 1 else 1.0),
            slow_slope=self._slope_now(slow_q),
            slow_rate=self.rate_of(slow_q),
            since_step=self._lines.steps[self._start],
            span_steps=self.span_steps,
            rise=self.rise,
            jump=self.jumps.typical or max(map(sub, values[1:], values)),
            jump_error=self.jumps.error,
            at_step=self._lines.steps[-1],
            level=level,
            lag=lag,
            expires_step=self.expires_step,
            renewed_above=self.renewed_above,
            pauses_after=self.pauses_after,
            value=self._values[-1],
            period=period,
            mean_jump=self.jumps.mean,
            has_like_jumps=period > 0 and self.jumps.variance <= MAX_ALIKE_VARIANCE,
            last_jump_step=self._last_jump_step() if period else 0.0,
        )

    def _last_jump_step(self) -> float:
        """Return the step of the newest jump: on average, since buckets keep their lowest value."""
        steps = self._lines.steps
        return steps[self._start + self.jumps.last] + (3 - (steps[-1] - steps[-2])) / 2

    def _period(self) -> float:
        """Return the steps from one jump to the next, 0 if that hardly matters."""
        jumps = self.jumps
        if jumps.gap < MIN_GAP:
            return 0.0
        return jumps.gap * self.span_steps / (len(self._values) - self._start - 1)

    def _level(self, tops: Sequence[float], q: float) -> tuple[float, float]:
        """Return what the newest steps reach (rule 10), and how far they lay below it at most."""
        steps, start, end = self._lines.steps, self._start, len(self._values)
        # the newer half only: the older one may lie on another line
        start = (start + end) // 2
        middle = sum(steps[start:end]) / (end - start)
        mean = self._values[0] + self._lines.mean(start, end)
        slope = self.slope * 2 * q / (1 + q)
        line = mean + slope * (steps[-1] - middle)
        if self.jumps.error > MAX_JUMP_ERROR:
            line = min(line, tops[-1])
        values, tops, newer = self._values[start:], tops[start:], self.newer_slope
        # maps: a loop took a tenth of a fit
        on_line = [mean + newer * (step - middle) for step in steps[start:]]
        above = max(0.0, *map(sub, tops, on_line))
        below = max(0.0, *map(sub, on_line, values))
        if not self.jumps.typical:
            return line + above, above + below
        before = accumulate(tops[:-1], max, initial=tops[0])
        # A rise that falls back is noise or a tooth; a lasting one is a jump.
        if max(0.0, *map(sub, before, values)) >= above / 2:
            return line + above, above + below
        level = max(tops[-1], line + self.jumps.typical / 2)
        return level, level - line + below

    def _onset(self) -> _Window | None:
        """Return the part that grows, if the rest is flat and two lines fit far better than one."""
        start, end = self._start, len(self._values)
        best = MAX_ONSET_RESIDUAL * (end - start) * self.scatter**2
        onset = None
        stride = max(1, (end - start) // 12)
        for split in range(start + stride, end - MIN_BUCKETS // 2, stride):
            flat, scatter_before = self._lines.fit(start, split)
            growing, scatter_after = self._lines.fit(split, end)
            both = (split - start) * scatter_before**2 + (end - split) * scatter_after**2
            if flat < MAX_ONSET_SLOPE * growing and both < best:
                best, onset = both, split
        if onset is None:
            return None
        window = _Window(self._lines, self._values, onset)
        window.expires_step = self.expires_step
        window.pauses_after = self.pauses_after
        window.renewed_above = self.renewed_above
        rises = window.rises_above_scatter(0.0)
        continues = window.newer_slope >= MIN_SLOPE_RATIO * window.older_slope
        return window if rises and continues else None

    def _slope_now(self, q: float) -> float:
        # Halves with the ratio q and the mean `slope`: the newer one has this slope in its middle,
        # a quarter of the window ago.
        newer = self.slope * 2 * q / (1 + q)
        return newer * (sqrt(q) if q < 1 else q ** (ACCELERATION_RATIO / 2))

    def _ratio_error(self) -> float:
        """Return the standard error of q, by the scatter of growth from block to block."""
        size = (len(self._values) - self._start) / BLOCKS
        edges = [self._start + round(block * size) for block in range(BLOCKS + 1)]
        means = [self._lines.mean(a, b) for a, b in pairwise(edges)]
        growth = [after - before for before, after in pairwise(means)]
        n = len(growth)
        mean = sum(growth) / n
        if mean <= 0:
            return 1.0
        # the residuals of a line through the n values, by hand: they are few
        slope = sum(map(mul, _FROM_MIDDLE, growth)) / _SQUARES_FROM_MIDDLE
        squares = sum(map(mul, growth, growth)) - n * mean**2 - slope**2 * _SQUARES_FROM_MIDDLE
        error = sqrt(max(0.0, squares) / (n - 2)) / mean * sqrt(2 / 3.5)
        return min(1.0, max(self.jumps.error, error))
