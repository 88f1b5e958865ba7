"""Results: the trend of a series, and the forecast with its levels and causes."""

from __future__ import annotations

from math import exp, inf
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from memagent.forecast.running_statistics import growth_in

Growing = Literal["unknown", "list", "buffer", "cache", "epoch"]
"""What keeps the growing memory: nothing clears a list; a buffer and a cache fill up; an epoch's
values are freed at its end. `unknown`: a diagnosis is looking for it."""
GROWING: tuple[Growing, ...] = get_args(Growing)
Level = Literal["ok", "notice", "warning", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""All levels, from harmless to worst."""
PAGING_LEVELS: tuple[Level, ...] = ("warning", "critical")
"""Levels that notify people."""
Cause = Literal[
    "leak",
    "fragmentation",
    "tail",
    "input",
    "optimizer_state",
    "eval",
    "other_processes",
    "host_memory",
    "compile",
]
CAUSES: tuple[str, ...] = get_args(Cause)
"""All values of `Forecast.cause`, including those reserved for later versions."""
LEAK_CAUSES: tuple[Cause, ...] = ("leak", "host_memory")
"""Causes that a leak diagnosis can trace to a line."""


class Trend(msgspec.Struct, frozen=True, gc=False):
    """Growth of one series. `slope` is per step, now; it changes by the factor exp(rate) a step."""

    slope: float
    error: float
    """Standard error of the slope."""
    rate: float
    slow_slope: float
    slow_rate: float
    since_step: float
    span_steps: float
    rise: float
    jump: float
    jump_error: float
    at_step: float
    level: float
    expires_step: float = inf
    """Growth has stopped after this step if no later value is above `renewed_above`."""
    renewed_above: float = inf
    pauses_after: float = inf
    """Growth pauses for longer than it ever did after this step, unless a later value is above
    `renewed_above`."""
    value: float = 0.0
    """Newest value of the series."""
    lag: float = inf
    """How far its values lay below their level at most."""
    period: float = 0.0
    """Steps from one jump to the next; 0 unless it grows by jumps."""
    mean_jump: float = 0.0
    has_like_jumps: bool = False
    """Sizes and gaps of the jumps are alike."""
    last_jump_step: float = 0.0

    def without_bend(self) -> Trend:
        """Return the trend read straight, as its newer half runs, if it slows down."""
        if self.rate >= 0:
            return self
        # the newer half's slope is that of its middle, a quarter of the window ago
        return replace(self, slope=self.slope * exp(-self.rate * self.span_steps / 4), rate=0.0)

    def level_at(self, step: float) -> float:
        """Return the expected level at `step`, with the usual excess over the line."""
        return self.level + growth_in(step - self.at_step, self.slope, self.rate)

    def level_above(self, value: float, step: float) -> float:
        """Return the same, at most as far above `value` as ever: growth may have paused."""
        return max(value, min(self.level_at(step), value + self.lag))


class Forecast(msgspec.Struct, frozen=True, gc=False):
    """The forecast after `step`. Steps are the run's own; sizes are bytes.

    `eta_*` are None if memory isn't expected to run out; `eta_s` counts seconds from this sample at
    the pace of recent steps. `oom_probability` is that of running out before the planned end, or
    before the horizon. `used_bytes` and `limit_bytes` are the host's if the cause is `host_memory`.
    `grown_bytes` is what the memory that grows most has gained since `growing_since_step`, by its
    readings. The rate times the steps isn't: it's the newest rate.
    `predecessor` says how the last run of the same program ended, unless all is calm.
    """

    step: int
    level: Level = "ok"
    oom_probability: float = 0.0
    cause: Cause | None = None
    eta_step: float | None = None
    eta_low: float | None = None
    eta_high: float | None = None
    eta_s: float | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
    growth_bytes_per_step: float | None = None
    growing_since_step: int | None = None
    grown_bytes: int | None = None
    predecessor: str | None = None
