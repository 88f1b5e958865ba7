"""Start of growth: the step since which memory has grown, the same from one trend to the next.

The window of a trend begins elsewhere whenever buckets merge, noise spoils a longer window, or one
slows down. People read its first step, so it's kept while the same growth goes on:

1. A trend continues the growth before if its window begins while that was still known to grow.
2. It doesn't if memory has grown since that began at less than half the trend's pace: then another
   growth has begun.
3. Of both steps, the earlier one counts.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from memagent.forecast.types import Trend

MIN_PACE_RATIO = 0.5
"""Mean pace since the start over the trend's, from which both are one growth: a choice between
growth that accelerates and a leak that begins beside slower growth."""


class GrowthStart(msgspec.Struct, frozen=True, gc=False):
    """Start of the growth of one series."""

    step: float
    value: float
    """Value at that step, by the trend's line."""
    until_step: float
    """Newest step at which it was known to grow."""

    @classmethod
    def of(cls, trend: Trend, before: GrowthStart | None) -> GrowthStart:
        """Return the start of what a trend shows. before: that of the trend before it."""
        own = cls(trend.since_step, trend.value - trend.rise, trend.at_step)
        if before is None or own.step <= before.step or not before._continues_in(trend):
            return own
        return replace(before, until_step=own.until_step)

    def _continues_in(self, trend: Trend) -> bool:
        """Check rules 1 and 2."""
        pace = (trend.value - self.value) / (trend.at_step - self.step)
        is_as_fast = pace >= MIN_PACE_RATIO * trend.rise / trend.span_steps
        return is_as_fast and trend.since_step <= self.until_step
