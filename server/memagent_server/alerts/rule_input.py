"""What rules decide on: plain values about one device of one rank, or about all ranks of a run. No store, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memagent.forecast import Forecast


@dataclass(frozen=True)
class RuleInput:
    """Sizes in bytes, times in seconds; None is not known. `peak_by_rank` and `status` are the run's, the rest a device's."""

    step: int = 0
    kind: str = "cuda"
    used_bytes: int | None = None
    peak_bytes: int | None = None
    """Of the newest sample."""
    launch_peak_bytes: int | None = None
    """Most ever allocated in this launch."""
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    limit_bytes: int | None = None
    limit_source: str | None = None
    predicted_peak_bytes: int | None = None
    forecast: Forecast | None = None
    silent_s: float | None = None
    """Since the newest sample, while its process is still heard of."""
    step_s: float | None = None
    """What a step takes."""
    peak_by_rank: Mapping[int, int] = field(default_factory=dict)
    status: str = "running"
    error: str | None = None
    was_warned: bool = False


@dataclass(frozen=True)
class Finding:
    """What a rule makes of facts: `level` is ok, warning or critical; `data` is kept with the alert, and its summary is made of it."""

    level: str = "ok"
    cause: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


CALM = Finding()
