"""Result of a forecast, with its levels and causes."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

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


class Forecast(msgspec.Struct, frozen=True):
    """The forecast after `step`. Steps are the run's own; sizes are bytes.

    `eta_*` are None if memory isn't expected to run out; `eta_s` counts seconds from this sample at
    the pace of recent steps. `oom_probability` is that of running out before the planned end, or
    before the horizon. `used_bytes` and `limit_bytes` are the host's if the cause is `host_memory`.
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
    predecessor: str | None = None
