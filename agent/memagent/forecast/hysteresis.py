"""Hysteresis: keeps the reported forecast stable between material changes.

A forecast comes with every sample, and people read it.

1. A higher level is reported at once, with everything else of the new forecast.
2. A lower level or another cause is reported after CALM_UPDATES new forecasts in a row.
3. An ETA and its interval stay while the new ETA differs by less than MATERIAL_CHANGE of the steps
   left, or by less than an eighth of the interval.

A projection moves little from one step to the next, and takes longer than all else. So while the
level is ok, the forecast of growth is kept (`CalmGrowth`) until

4. MAX_AGE of the steps left at the earliest have passed,
5. as large a share of the headroom is used up, or
6. another trend was fitted, or one has ended.

The window of a trend begins elsewhere whenever buckets merge, noise spoils a longer window, or one
slows down. People read its first step, so it's kept while the same growth goes on (`GrowthStart`):

7. A trend continues the growth before if its window begins while that was still known to grow,
   whatever its pace has become. Of the programs looked at, 5 of 9,300 trends are more than twice as
   fast as the growth before.
8. Of both steps, the earlier one counts.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from memagent.forecast.projection import Projection
from memagent.forecast.types import LEVELS, Forecast, Trend

CALM_UPDATES = 8
"""Forecasts in a row after which a lower level or another cause is reported."""
MATERIAL_CHANGE = 0.2
"""Share of the steps left by which an ETA must move to be reported."""
MIN_CHANGE_STEPS = 2.0
"""Differences of fewer steps aren't reported."""
MAX_AGE = 0.02
"""Share of the steps left (rule 4): far less than the error of any estimate of them."""


class ForecastHysteresis:
    """Turns new forecasts into reported ones."""

    __slots__ = ("_differing", "reported")

    def __init__(self) -> None:
        self.reported: Forecast | None = None
        self._differing = 0

    def settle(self, new: Forecast, step_s: float | None) -> Forecast:
        """Return the forecast to report at this step. `step_s`: seconds per step."""
        self.reported = self._settled(new, step_s)
        return self.reported

    def reset(self) -> None:
        """Report the next forecast as it is, since the reason of the last one is gone."""
        self.reported = None
        self._differing = 0

    def _settled(self, new: Forecast, step_s: float | None) -> Forecast:
        old = self.reported
        # a rise is never delayed: it may be the only warning
        if old is None or LEVELS.index(new.level) > LEVELS.index(old.level):
            self._differing = 0
            return new
        if (old.level, old.cause) == (new.level, new.cause):
            self._differing = 0
            return new if _is_material(old, new) else _carried_forward(old, new, step_s)
        self._differing += 1
        if self._differing >= CALM_UPDATES:
            self._differing = 0
            return new
        return _carried_forward(
            old,
            new,
            step_s,
            used_bytes=old.used_bytes,
            oom_probability=old.oom_probability,
            growth_bytes_per_step=old.growth_bytes_per_step,
            growing_since_step=old.growing_since_step,
            grown_bytes=old.grown_bytes,
        )


def _is_material(old: Forecast, new: Forecast) -> bool:
    """Return True if the new ETA must be reported (rule 3)."""
    if old.eta_step is None or new.eta_step is None:
        return True
    steps_left = old.eta_step - new.step
    eighth = ((old.eta_high or 0.0) - (old.eta_low or 0.0)) / 8
    tolerance = max(MATERIAL_CHANGE * steps_left, eighth, MIN_CHANGE_STEPS)
    return abs(new.eta_step - old.eta_step) > tolerance or steps_left < MIN_CHANGE_STEPS


def _carried_forward(
    old: Forecast, new: Forecast, step_s: float | None, **fields: float | None
) -> Forecast:
    """Return the new forecast with the old level, cause and ETA, and these fields."""
    carried: dict[str, Any] = {
        "level": old.level,
        "cause": old.cause,
        "limit_bytes": old.limit_bytes,
        **fields,
    }
    if old.eta_step is not None and old.eta_low is not None and old.eta_high is not None:
        now = float(new.step)
        # an ETA that has passed is now
        eta = max(now, old.eta_step)
        carried |= {
            "eta_step": eta,
            "eta_low": max(now, old.eta_low),
            "eta_high": max(now, old.eta_high),
            "eta_s": None if step_s is None else (eta - now) * step_s,
        }
    # one copy: it's made at each step of a growing run
    return replace(new, **carried)


class CalmGrowth:
    """Call `keep` with a forecast of level ok, then ask `holds` at each step."""

    __slots__ = ("_max_used", "_revision", "_until_step", "nearest", "probability")

    def __init__(self) -> None:
        self.nearest: Projection | None = None
        """The projection that is kept, if any."""
        self.probability = 0.0
        """Its probability of an OOM."""
        self._until_step = self._max_used = 0.0
        self._revision = 0

    def keep(
        self, step: int, nearest: Projection, probability: float, used: float, revision: int
    ) -> None:
        """Keep a forecast. used: bytes that the step takes. revision: that of the trends."""
        self.nearest = nearest
        self.probability = probability
        steps = MAX_AGE * nearest.steps_left_low
        self._until_step = step + steps
        self._max_used = used + steps * nearest.slope
        self._revision = revision

    def drop(self) -> None:
        """Keep nothing, since the knowledge or the level has changed."""
        self.nearest = None

    def holds(self, step: int, used: float, revision: int) -> bool:
        """Return True if what is kept is good for this step."""
        is_same = self.nearest is not None and revision == self._revision
        return is_same and step <= self._until_step and used <= self._max_used


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
        if before is None or not before.step < own.step <= before.until_step:
            return own
        return replace(before, until_step=own.until_step)
