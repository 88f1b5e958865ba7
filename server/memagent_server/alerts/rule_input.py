"""Input and result of a rule: plain values about a device of a rank, or about a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memagent.forecast import Forecast
from memagent_server.alerts.column_monitor import ColumnFinding


@dataclass(frozen=True)
class ScriptAlert:
    """A problem that a script reported by `run.alert`, `count` times since its last report."""

    title: str
    text: str = ""
    level: str = "warning"
    count: int = 1


@dataclass(frozen=True)
class RuleInput:
    """Sizes in bytes, times in seconds; None means unknown.

    `peak_by_rank` and `status` describe the run, all other fields one device.
    """

    step: int = 0
    kind: str = "cuda"
    used_bytes: int | None = None
    peak_bytes: int | None = None
    """Peak of the newest sample."""
    launch_peak_bytes: int | None = None
    """Highest peak of this launch."""
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    limit_bytes: int | None = None
    limit_source: str | None = None
    predicted_peak_bytes: int | None = None
    forecast: Forecast | None = None
    silent_s: float | None = None
    """Seconds since the newest sample, while the process still sends heartbeats."""
    step_s: float | None = None
    """Duration of a step."""
    peak_by_rank: Mapping[int, int] = field(default_factory=dict)
    status: str = "running"
    error: str | None = None
    run_s: float | None = None
    """Duration of the run, once it has ended."""
    was_warned: bool = False
    script_alert: ScriptAlert | None = None
    column: ColumnFinding | None = None


@dataclass(frozen=True)
class RuleResult:
    """Decision of a rule.

    `level` is ok, warning or critical. `data` is stored with the alert, and its summary is built
    from it.
    """

    level: str = "ok"
    cause: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


CALM = RuleResult()
