"""Projection: when trends use up the headroom, and how far ahead that can be trusted.

1. Trends of one memory add up. The one that grows most until the limit gives the cause.
2. A trend may page as many steps ahead as it has lasted: it then pages when half of a straight
   leak's life is left. It's a notice up to a third further ahead.
3. Some growth is trusted less, because it often ends by itself. Peaks of steps (`input`) grow by a
   curriculum or a sorted epoch whose largest input isn't known. Host memory is filled by caches and
   workers. Free pieces of blocks are reused later (`fragmentation`). Growth that may die out before
   the limit (rule 6 of `trend`), or that comes in jumps, is typical of compiled graphs and
   caches: the fewer and the less regular the jumps, the less trust. Fewer than a dozen irregular
   ones never page: real runs reach the most that they ever use by such jumps.
4. Rule 3 counts less in the last steps, or if a jump or two would reach the limit.
5. The interval includes how much of the reserve may turn out usable, or not (`overhead`).
   `calibration` widens it.
6. Young growth at an uncertain pace never pages, unless only the whole device's use is read.

All constants were fitted to the traces of the forecast benchmark (docs/forecast.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite, sqrt

import msgspec
from msgspec.structs import replace

from memagent.forecast.running_statistics import growth_in, steps_until
from memagent.forecast.trend import MAX_JUMP_ERROR, MAX_TRUSTED_JUMP_ERROR
from memagent.forecast.types import Cause, Trend

PAGE_AHEAD = 1.0
"""Steps ahead that a trend may page, over the steps it has lasted."""
DEVICE_PAGE_AHEAD = 1.5
"""The same if only the whole device's use is read: a caching allocator takes memory from it in
segments and rarely straight. Set on half of the real GPU runs: 2.0 finds no more leaks."""
NOTICE_AHEAD = 1.3
"""Steps ahead that a trend is a notice, over those that it may page. Weaker evidence that gave a
notice as far ahead as a leak was as often wrong as right on the programs looked at."""
PAGE_AHEAD_BY_CAUSE: dict[Cause, float] = {"input": 0.06, "host_memory": 0.4, "fragmentation": 0.3}
"""The same for causes that are trusted less."""
DYING_PAGE_AHEAD = 0.2
"""The same for growth that may die out."""
SLOW_AHEAD = 2.0
"""Growth may die out if it needs more than so many times the steps it has lasted, read slowly."""
JUMPS_LEFT = 1.4
"""Typical jumps up to which a jump or two would reach the limit."""
JUMP_PAGE_AHEAD = 0.1
"""The same for growth by jumps, to be divided by the error that comes of their number."""
YOUNG_STEPS, MAX_YOUNG_ERROR = 40, 0.1
"""Growth of fewer steps pages only if the error of its slope is smaller: else it may be the start
of what wanders, or ends. On the programs looked at, 32 of 1,000 harmless runs fewer are paged, and
1 of 267 dying ones; with 30 to 50 steps and errors of 0.05 to 0.2, nearly the same."""
PAGE_BIAS = 1.04
"""Factor on the steps left: a page is sent when their estimate happens to be low."""
NEVER = -1.0
"""Distance of growth that doesn't page."""
LAST_STEPS = 25
"""Any trend may page so many steps before the limit."""
LAST_STEPS_OF_INPUT = 14
"""The same for inputs."""
MAX_LAST_AHEAD = 0.25
"""The same at most, over the steps that the trend has lasted."""
SLOPE_TOLERANCE = 1.15
"""Factor on either side of the slope beyond its error, for unread peaks and later changes."""


class Projection(msgspec.Struct, frozen=True, gc=False):
    """Steps from now until the limit is reached. All finite."""

    cause: Cause
    steps_left: float
    steps_left_low: float
    """The earliest."""
    steps_left_high: float
    undamped_steps_left: float
    """The steps left if the growth doesn't die out."""
    span_steps: float
    """Steps that the leading trend has lasted."""
    slope: float
    since_step: float
    limit_bytes: int
    may_die_out: bool = False
    jump_error: float = 0.0
    is_device: bool = False
    """True if only the whole device's use is read."""
    rise_bytes: float = 0.0
    """Rise of the leading trend since `since_step`."""
    needs_jumps: bool = True
    """More than a jump or two is left to the limit."""
    slope_error: float = 0.0
    """Error of the slope, relative to it."""
    pauses: bool = False
    """The growth pauses for longer than it ever did, so it may have ended."""

    @property
    def is_by_jumps(self) -> bool:
        """Return True if the growth so far is one of few jumps."""
        return self.jump_error > MAX_JUMP_ERROR

    @property
    def ahead(self) -> float:
        """Return the distance as a multiple of the steps that the trend has lasted."""
        return self.undamped_steps_left / self.span_steps

    @property
    def _is_young_and_unsure(self) -> bool:
        is_young = self.span_steps < YOUNG_STEPS and not self.is_device
        return is_young and self.slope_error > MAX_YOUNG_ERROR

    def ending_in(self, steps: float) -> Projection:
        """Return the projection with another end, by what the predecessor did."""
        return replace(
            self,
            steps_left=steps,
            steps_left_low=steps,
            steps_left_high=steps,
            undamped_steps_left=steps,
        )

    def without_end(self) -> Projection:
        """Return the projection of growth that is known not to die out."""
        steps = self.undamped_steps_left
        return replace(self, steps_left=steps, may_die_out=False)

    def at_a_jump(self, trend: Trend, headroom: float, step: float) -> Projection:
        """Return the projection with the end at a jump, if `trend` grows by jumps.

        headroom: bytes that were left at the newest value of the trend.
        """
        if not trend.period or headroom <= 0:
            return self
        jumps = headroom / trend.mean_jump
        if trend.has_like_jumps:
            steps = max(1.0, trend.last_jump_step + ceil(jumps) * trend.period - step)
        else:
            # jumps at random: the next one is as far away as ever
            steps = max(1.0, jumps + 0.5) * trend.period
        return replace(
            self,
            steps_left=steps,
            steps_left_low=min(self.steps_left_low, steps),
            steps_left_high=max(self.steps_left_high, steps),
        )

    @property
    def page_ahead(self) -> float:
        """Return up to which distance the projection may page."""
        if self.jump_error > MAX_TRUSTED_JUMP_ERROR or self._is_young_and_unsure:
            return NEVER
        most = DEVICE_PAGE_AHEAD if self.is_device else PAGE_AHEAD
        trusted = PAGE_AHEAD_BY_CAUSE.get(self.cause, most)
        if self.may_die_out:
            trusted = min(trusted, DYING_PAGE_AHEAD)
        if self.jump_error and self.needs_jumps:
            trusted = min(trusted, JUMP_PAGE_AHEAD / self.jump_error)
        last = LAST_STEPS_OF_INPUT if self.cause == "input" else LAST_STEPS
        return min(most, max(trusted, min(MAX_LAST_AHEAD, last / self.span_steps)))


def project(
    trends: Mapping[Cause, Trend],
    headroom: float,
    limit_bytes: int,
    bounds: tuple[float, float] = (0.0, 0.0),
    *,
    is_device: bool = False,
) -> Projection | None:
    """Return when trends use up the `headroom` that they share, or None if they never do.

    bounds: by how much the headroom may be larger, and smaller. is_device: see `Projection`.
    """
    if not trends:
        return None
    shared = list(trends.values())
    cause, leading = next(iter(trends.items()))
    slope, rate, error = leading.slope, leading.rate, leading.error
    if len(shared) > 1:  # rarely, so one trend has a short way
        slope = sum(trend.slope for trend in shared)
        # weighted by slope: the trend that grows most bends most
        rate = sum(trend.slope * trend.rate for trend in shared) / slope
        error = sum(trend.error for trend in shared)
    steps = steps_until(headroom, slope, rate)
    if not isfinite(steps):
        return None
    steps *= PAGE_BIAS
    if len(shared) > 1:
        cause = max(
            trends, key=lambda name: growth_in(steps, trends[name].slope, trends[name].rate)
        )
        leading = trends[cause]
    slow = _slow_steps_left(shared, headroom)
    needs_jumps = headroom > JUMPS_LEFT * leading.jump
    may_die_out = needs_jumps and slow > SLOW_AHEAD * leading.span_steps
    jump = leading.jump
    # The interval: the slope off by its error and tolerance, a jump earlier or later.
    more, less = bounds
    low = steps_until(headroom - less - jump / 2, (slope + error) * SLOPE_TOLERANCE, rate)
    high = steps_until(
        headroom + more + jump, max(0.3 * slope, (slope - error) / SLOPE_TOLERANCE), rate
    )
    # between both readings, by their geometric mean
    expected = sqrt(steps * min(slow, 4 * steps)) if may_die_out else steps
    return Projection(
        cause=cause,
        steps_left=expected,
        steps_left_low=min(steps, low),
        steps_left_high=max(expected, min(max(high, slow), 4 * expected + jump / slope)),
        undamped_steps_left=steps,
        span_steps=leading.span_steps,
        slope=slope,
        since_step=leading.since_step,
        rise_bytes=leading.rise,
        limit_bytes=limit_bytes,
        may_die_out=may_die_out,
        jump_error=leading.jump_error,
        is_device=is_device,
        needs_jumps=needs_jumps,
        slope_error=error / slope,
    )


def _slow_steps_left(trends: list[Trend], headroom: float) -> float:
    """Return the steps left if every trend dies out as fast as its readings allow."""
    slope, rate = trends[0].slow_slope, trends[0].slow_rate
    if len(trends) > 1:
        slope = sum(trend.slow_slope for trend in trends)
        rate = sum(trend.slow_slope * trend.slow_rate for trend in trends) / slope
    return PAGE_BIAS * steps_until(headroom, slope, rate)
