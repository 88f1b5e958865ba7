"""Is a series growing in a way that goes on? A straight line over the longest stretch of recent past that really is one.

1. Windows: the whole trail, then its last half, quarter and eighth. A warm-up or a late onset spoils the long ones and leaves the short.
2. In each, ordinary least squares. The line's rise over the window must stand above the scatter around it (7 standard deviations; a
   single jump has 6) and be more than a trifle of the limit.
3. Growth must go on: the slope of the newer half at least 0.6 of the older one's. A curve that saturates, 1 - exp(-t/tau), fails this on
   every window longer than tau, and on a shorter one its line reaches beyond its asymptote only after more than the window's length.
4. Growth must be everywhere: the lowest value of each quarter rises from one to the next, with one step back allowed for noise.
   A saw tooth fails once it has fallen.
5. The longest window that passes is taken: most evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

SHORTEST = 16
"""Buckets that a window must hold."""
RISE_OVER_SCATTER = 7.0
GOES_ON = 0.6
ALLOWANCE = 1.15
"""On either side of the slope, beyond what scatter and curvature say: peaks between readings, rates that change later."""


@dataclass(frozen=True)
class Trend:
    """A line that a series follows. `slope` is per step; `low` and `high` bound it by what its halves and its scatter say."""

    slope: float
    slope_low: float
    slope_high: float
    since_step: float
    watched_steps: float
    rise: float


def find_trend(steps: list[float], values: list[float], trifle: float) -> Trend | None:
    """The trend of the newest part of a series, or None. `trifle` is a rise that does not matter, in the values' unit."""
    count = len(steps)
    size = count
    while size >= SHORTEST:
        trend = _fit(steps[count - size :], values[count - size :], trifle)
        if trend is not None:
            return trend
        size //= 2
    return None


def _fit(steps: list[float], values: list[float], trifle: float) -> Trend | None:
    watched = steps[-1] - steps[0]
    if values[-1] - values[0] < trifle or watched <= 0:
        return None
    slope, scatter = _line(steps, values)
    rise = slope * watched
    if rise < max(RISE_OVER_SCATTER * scatter, trifle):
        return None
    middle = len(steps) // 2
    older, _ = _line(steps[: middle + 1], values[: middle + 1])
    newer, _ = _line(steps[middle:], values[middle:])
    if newer < GOES_ON * older or newer <= 0 or not _rises_everywhere(values, rise):
        return None
    error = 2 * scatter * sqrt(12 / len(steps)) / watched
    return Trend(
        slope=newer if newer > 1.1 * slope else slope,  # accelerating: the newer half is nearer to what comes
        slope_low=max(0.3 * slope, (min(slope, newer) - error) / ALLOWANCE),
        slope_high=(max(slope, newer) + error) * ALLOWANCE,
        since_step=steps[0],
        watched_steps=watched,
        rise=rise,
    )


def _line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Slope and residual standard deviation of least squares."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    xx = xy = yy = 0.0
    for a, b in zip(x, y, strict=True):
        a -= mean_x  # noqa: PLW2901
        b -= mean_y  # noqa: PLW2901
        xx += a * a
        xy += a * b
        yy += b * b
    if xx <= 0:
        return 0.0, 0.0
    slope = xy / xx
    return slope, sqrt(max(0.0, yy - slope * xy) / n)


def _rises_everywhere(values: list[float], rise: float) -> bool:
    quarter = len(values) // 4
    lows = [min(values[start : start + quarter]) for start in (0, quarter, 2 * quarter, len(values) - quarter)]
    falls = sum(after <= before for before, after in pairwise(lows))
    highest_fall = max(before - after for before, after in pairwise(lows))
    return falls <= 1 and highest_fall < 0.1 * rise
