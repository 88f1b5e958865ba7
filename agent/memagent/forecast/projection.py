"""Where trends lead: the steps until together they have used up the headroom, and how far such a lead is to be believed.

1. Trends of one memory add up; the one that will have grown the most over the believed distance gives the cause.
2. A trend is believed to page only as far ahead as about half the time it was watched, and for a notice twice that time: most harmless
   growth ends before it, and most fatal growth does not.
3. Some growth is believed less, for it more often ends by itself: that of the step's peak (`input`), since lengths grow by a curriculum
   or a sorted epoch and the largest is not known; that of the host's memory, since caches and workers fill it; and growth whose rate
   cannot be told from one that dies out before the limit (`slow`, rule 6 of `trend`), as compiled graphs and caches do by jumps: the
   fewer and the less regular the jumps, the less far.
4. None of that counts in the last steps, nor where a jump or two would be the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erfc, isfinite, log, sqrt

from memagent.forecast.trend import Trend, growth_in, steps_until
from memagent.forecast.types import Cause

PAGE_AHEAD, NOTICE_AHEAD = 0.58, 2.0
BELIEVED: dict[Cause, float] = {"input": 0.06, "host_memory": 0.4}
"""Page distance of causes that are believed less, as a multiple of the time watched."""
DYING_OUT, SLOW_AHEAD, JUMPS = 0.2, 1.0, 1.4
"""Page distance of growth that may die out: where it would, by its slow reading, need more than SLOW_AHEAD of the time watched, and more
than JUMPS of its typical jumps are still to come."""
LATER = 1.04
"""A page comes at the moment when its estimate of the steps left happens to be low."""
BY_JUMPS = 0.1
"""Page distance of growth by jumps, over the error that comes of their number."""
LAST_STEPS, LAST_STEPS_OF_INPUT = 25, 14
"""So many steps before its end any trend may page, where half of the time watched is as long."""
FADES: dict[Cause, float] = {"input": 0.5}
"""How fast the probability falls with the distance, by the reliability table in docs/forecast.md."""
SPREAD = 0.35
"""Standard deviation of the logarithm of (actual / expected) steps left."""
ALLOWANCE = 1.15
"""On either side of the slope, beyond what scatter and bend say: peaks between readings, rates that change later."""


@dataclass(frozen=True)
class Projection:
    """Steps from now until the limit is reached; `steps_left_low` is the earliest. All finite."""

    cause: Cause
    steps_left: float
    steps_left_low: float
    steps_left_high: float
    straight: float
    watched_steps: float
    slope: float
    since_step: float
    limit_bytes: int
    may_die_out: bool = False
    jump_error: float = 0.0

    @property
    def ahead(self) -> float:
        """Distance as a multiple of the time watched."""
        return self.straight / self.watched_steps

    @property
    def page_ahead(self) -> float:
        """Up to which distance it is believed enough to page."""
        believed = BELIEVED.get(self.cause, PAGE_AHEAD)
        if self.may_die_out:
            believed = min(believed, DYING_OUT)
        if self.jump_error:
            believed = min(believed, BY_JUMPS / self.jump_error)
        last = LAST_STEPS_OF_INPUT if self.cause == "input" else LAST_STEPS
        return min(PAGE_AHEAD, max(believed, last / self.watched_steps))

    def chance_within(self, steps: float) -> float:
        """Probability of death within so many steps: that growth goes on, times that its pace is enough."""
        goes_on = 0.98 / (1 + FADES.get(self.cause, 0.12) * self.ahead)
        if not isfinite(steps) or self.steps_left <= 0:
            return goes_on
        if steps <= 0:
            return 0.0
        return goes_on * 0.5 * erfc(log(self.steps_left / steps) / SPREAD / sqrt(2))


def reach(trends: Mapping[Cause, Trend], headroom: float, limit_bytes: int) -> Projection | None:
    """The reach of trends that share a memory with `headroom` bytes left, or None where they never use it up."""
    if not trends:
        return None
    found = list(trends.values())
    slope = sum(trend.slope for trend in found)
    rate = sum(trend.slope * trend.rate for trend in found) / slope
    left = steps_until(headroom, slope, rate)
    if not isfinite(left):
        return None
    left *= LATER
    cause = max(trends, key=lambda name: growth_in(left, trends[name].slope, trends[name].rate))
    leading = trends[cause]
    slow = _slow(found, headroom)
    may_die_out = headroom > JUMPS * leading.jump and slow > SLOW_AHEAD * leading.watched_steps
    error, jump = sum(trend.error for trend in found), leading.jump
    low = steps_until(headroom - jump / 2, (slope + error) * ALLOWANCE, rate)
    high = steps_until(headroom + jump, max(0.3 * slope, (slope - error) / ALLOWANCE), rate)
    expected = sqrt(left * min(slow, 4 * left)) if may_die_out else left
    return Projection(
        cause=cause,
        steps_left=expected,
        steps_left_low=min(left, low),
        steps_left_high=max(expected, min(max(high, slow), 4 * expected + jump / slope)),
        straight=left,
        watched_steps=leading.watched_steps,
        slope=slope,
        since_step=leading.since_step,
        limit_bytes=limit_bytes,
        may_die_out=may_die_out,
        jump_error=leading.jump_error if headroom > JUMPS * leading.jump else 0.0,
    )


def _slow(trends: list[Trend], headroom: float) -> float:
    """Steps left where every trend dies out as fast as its readings allow."""
    slope = sum(trend.slow_slope for trend in trends)
    return LATER * steps_until(
        headroom, slope, sum(trend.slow_slope * trend.slow_rate for trend in trends) / slope
    )
