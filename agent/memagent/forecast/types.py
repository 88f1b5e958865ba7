"""What the forecaster answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["ok", "notice", "warning", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From harmless to worst."""
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
"""Every word that `Forecast.cause` may be, now or in a later version."""
LEAK_CAUSES: tuple[Cause, ...] = ("leak", "host_memory")
"""Causes that a leak diagnosis can trace to a line."""


@dataclass(frozen=True)
class Forecast:
    """What is known after `step`. Steps are the run's own; `eta_*` are None where nothing is expected to run out.

    `oom_probability` is that of running out before the planned end (or the horizon). `eta_s` is seconds from this sample, at the
    pace of recent steps. Sizes are bytes; `used_bytes` and `limit_bytes` are the host's where the cause is `host_memory`.
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
