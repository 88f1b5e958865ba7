"""What the forecaster says of this process, in the process itself: for a lone user without a server, and for `on_risk`.

The same forecaster runs on the server; here it sees the rows a quarter of a second after they were taken. A warning goes to stderr
when the level rises, and again at most every minute while it stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from memagent.estimator.advice import advice_for_cause
from memagent.forecast import Forecast, Forecaster, feed
from memagent.guard import tell
from memagent.units import format_bytes, format_duration
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Level, Risk

LEVELS: tuple[Level, ...] = ("ok", "notice", "warning", "critical")
REPEAT_S = 60.0


@dataclass
class Lookout:
    """One device's forecaster and what was last said about it."""

    device: Device
    forecaster: Forecaster
    newest: Forecast | None = None
    warned_level: Level = "ok"
    warned_at: float = field(default=float("-inf"))


class Outlook:
    """Forecasts for `devices`; `on_risk`, where given, gets each new or worse risk, on the thread that calls `observe`."""

    def __init__(
        self, rank: int, devices: list[Device], total_steps: int | None, on_risk: Callable[[Risk], None]
    ) -> None:
        self._rank, self._on_risk = rank, on_risk
        self._lookouts = {
            device.id: Lookout(device, Forecaster(device.limit_bytes, total_steps=total_steps))
            for device in devices
            if device.limit_bytes
        }
        self.worst: Risk | None = None

    def observe(self, stream: str, columns: dict[str, list[Value]]) -> None:
        """Feed consecutive samples of one stream."""
        lookout = self._lookouts.get(stream)
        if lookout is None:
            return
        for forecast in feed(lookout.forecaster, columns):
            lookout.newest = forecast
        if lookout.newest is not None:
            self._consider(lookout, lookout.newest, time.monotonic())

    def risks(self) -> list[Risk]:
        """The newest forecast of each device."""
        return [
            _risk(self._rank, lookout.device, lookout.newest) for lookout in self._lookouts.values() if lookout.newest
        ]

    def _consider(self, lookout: Lookout, forecast: Forecast, now: float) -> None:
        level = forecast.level
        if level not in ("warning", "critical"):
            if level == "ok" and lookout.warned_level != "ok":
                lookout.warned_level = "ok"
                tell(f"{lookout.device.name}: no longer expected to run out of memory")
            return
        worse = LEVELS.index(level) > LEVELS.index(lookout.warned_level)
        if not worse and now - lookout.warned_at < REPEAT_S:
            return
        risk = _risk(self._rank, lookout.device, forecast)
        lookout.warned_at = now
        tell(warning_text(risk, lookout.device.name))
        if worse:
            lookout.warned_level = level
            if self.worst is None or LEVELS.index(level) >= LEVELS.index(self.worst.level):
                self.worst = risk
            self._on_risk(risk)


def warning_text(risk: Risk, device_name: str) -> str:
    """The warning as a person reads it at a terminal: when, how full, why, what to change."""
    when = "soon"
    if risk.eta_step is not None:
        when = f"in about {max(0, round(risk.eta_step - risk.step)):,} steps"
        if risk.eta_s is not None:
            when += f" ({format_duration(risk.eta_s)})"
    lines = [
        f"WARNING: step {risk.step:,}: {device_name} will run out of memory {when}: "
        f"{format_bytes(risk.used_bytes)} of {format_bytes(risk.limit_bytes)} used"
        + (f", {format_bytes(risk.growth_bytes_per_step)} more a step" if risk.growth_bytes_per_step else "")
        + "."
    ]
    if risk.cause:
        advice = advice_for_cause(risk.cause)
        lines += [f"  cause: {risk.cause}. {advice.summary}", f"  change: {advice.change}"]
    return "\n".join(lines)


def _risk(rank: int, device: Device, forecast: Forecast) -> Risk:
    return Risk(
        level=forecast.level,
        rank=rank,
        device=device.id,
        step=forecast.step,
        oom_probability=forecast.oom_probability,
        cause=forecast.cause,
        eta_step=forecast.eta_step,
        eta_low=forecast.eta_low,
        eta_high=forecast.eta_high,
        eta_s=forecast.eta_s,
        used_bytes=forecast.used_bytes,
        limit_bytes=forecast.limit_bytes,
        growth_bytes_per_step=forecast.growth_bytes_per_step,
        growing_since_step=forecast.growing_since_step,
    )
