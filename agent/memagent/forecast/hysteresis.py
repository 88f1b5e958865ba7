"""What is told, so that it changes only when it means it: answers come with every sample, and people read them.

1. A level rises at once, and with it everything is told anew.
2. It falls, and the cause changes, when that has been so for CALM answers in a row.
3. An ETA is kept, with its interval, while the fresh one differs by less than MATERIAL of what is left, or half of what the interval
   leaves open anyway.
"""

from __future__ import annotations

from dataclasses import replace

from memagent.forecast.types import LEVELS, Forecast

CALM = 8
MATERIAL = 0.2
LEAST_STEPS = 2.0
"""Differences of fewer steps are no news."""


class ForecastHysteresis:
    """`settle` each fresh answer into the one to be told."""

    __slots__ = ("_differing", "told")

    def __init__(self) -> None:
        self.told: Forecast | None = None
        self._differing = 0

    def settle(self, fresh: Forecast, step_s: float | None) -> Forecast:
        """What to tell at this step; `step_s` are seconds a step."""
        self.told = self._settled(fresh, step_s)
        return self.told

    def forget(self) -> None:
        """The reason of what was told is known to be gone: the next answer is told as it comes."""
        self.told, self._differing = None, 0

    def _settled(self, fresh: Forecast, step_s: float | None) -> Forecast:
        told = self.told
        if told is None or LEVELS.index(fresh.level) > LEVELS.index(told.level):
            self._differing = 0
            return fresh
        if (told.level, told.cause) == (fresh.level, fresh.cause):
            self._differing = 0
            return fresh if _is_news(told, fresh) else _later(told, fresh, step_s)
        self._differing += 1
        if self._differing >= CALM:
            self._differing = 0
            return fresh
        return replace(
            _later(told, fresh, step_s), used_bytes=told.used_bytes, oom_probability=told.oom_probability,
            growth_bytes_per_step=told.growth_bytes_per_step, growing_since_step=told.growing_since_step,
        )  # fmt: skip


def _is_news(told: Forecast, fresh: Forecast) -> bool:
    if told.eta_step is None or fresh.eta_step is None:
        return True
    left = told.eta_step - fresh.step
    wide = ((told.eta_high or 0.0) - (told.eta_low or 0.0)) / 4
    return (
        abs(fresh.eta_step - told.eta_step) > max(MATERIAL * left, wide, LEAST_STEPS)
        or left < LEAST_STEPS
    )


def _later(told: Forecast, fresh: Forecast, step_s: float | None) -> Forecast:
    """What was told, at the step of `fresh`."""
    if told.eta_step is None or told.eta_low is None or told.eta_high is None:
        return replace(fresh, level=told.level, cause=told.cause, limit_bytes=told.limit_bytes)
    now = float(fresh.step)
    eta = max(now, told.eta_step)
    return replace(
        fresh, level=told.level, cause=told.cause, limit_bytes=told.limit_bytes, eta_step=eta, eta_low=max(now, told.eta_low),
        eta_high=max(now, told.eta_high), eta_s=None if step_s is None else (eta - now) * step_s,
    )  # fmt: skip
