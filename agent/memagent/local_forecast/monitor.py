"""What the forecaster says of this process, in the process itself: for a lone user without a server, and for `on_risk`.

The same forecaster runs on the server; here it sees the rows a quarter of a second after they were taken.
1. A warning goes to stderr when the level rises above all that was told, and again every minute while it stays.
2. With the first of these comes `on_risk`. A level that falls and rises again within a minute is the same warning: nobody wants a
   checkpoint for each time that a forecast hesitates.
3. "No longer expected" is told once for each time that a warning was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memagent.diagnostics.console import notify_user
from memagent.estimator.advice.by_cause import advice_for_cause
from memagent.estimator.estimate import Estimate
from memagent.forecast import Forecast, Forecaster, GcProbe, Hints, feed_columns, select_columns
from memagent.forecast.types import LEVELS, PAGING_LEVELS, Level
from memagent.units import format_bytes, format_duration
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Risk

REPEAT_S = 60.0


@dataclass
class DeviceForecast:
    """One device's forecaster and what was last said about it. `is_secondary_host`: see `memagent.forecast.Hints.forecaster`."""

    device: Device
    forecaster: Forecaster
    is_secondary_host: bool
    newest: Forecast | None = None
    told_level: Level = "ok"
    told_at: float = field(default=float("-inf"))
    is_calm: bool = True


class ForecastMonitor:
    """Forecasts for `devices`; `on_risk`, where given, gets each new or worse risk, on the thread that calls `observe`.

    `gc_probe`: as `Forecaster` takes it. `on_suspicion` gets each forecast that is not calm, on that thread too. `prediction` is what the
    estimator says of the first device by now.
    """

    def __init__(
        self,
        rank: int,
        devices: list[Device],
        hints: Hints,
        on_risk: Callable[[Risk], None],
        *,
        gc_probe: GcProbe | None = None,
        prediction: Callable[[], Estimate | None] = lambda: None,
        on_suspicion: Callable[[Forecast], None] = lambda _: None,
    ) -> None:
        self._on_suspicion = on_suspicion
        self._rank, self._on_risk, self._prediction, self._hints = rank, on_risk, prediction, hints
        self._trained = devices[0].id
        self._lookouts: dict[str, DeviceForecast] = {}
        for device in devices:
            if device.limit_bytes:
                is_secondary_host = device.kind == "host" and device.id != self._trained
                made = hints.forecaster(
                    device.id,
                    device.limit_bytes,
                    is_secondary_host=is_secondary_host,
                    gc_probe=gc_probe,
                )
                self._lookouts[device.id] = DeviceForecast(device, made, is_secondary_host)
        self.worst: Risk | None = None

    def learn(self, hints: Hints) -> None:
        """What is known by now; on any thread."""
        self._hints = hints
        for lookout in self._lookouts.values():
            hints.apply_to(
                lookout.forecaster, lookout.device.id, is_secondary_host=lookout.is_secondary_host
            )

    def observe(self, stream: str, columns: dict[str, list[Value]]) -> None:
        """Feed consecutive samples of one stream."""
        lookout = self._lookouts.get(stream)
        if lookout is None:
            return
        for forecast in feed_columns(
            lookout.forecaster, select_columns(columns, is_secondary_host=lookout.is_secondary_host)
        ):
            lookout.newest = forecast
        if lookout.newest is not None:
            if lookout.newest.level != "ok":
                self._on_suspicion(lookout.newest)
            self._consider(lookout, lookout.newest, time.monotonic())

    def expect_state(self, used_bytes: Mapping[str, int]) -> None:
        """The optimizer is about to step for the first time, with gradients in place: is there room for its state?"""
        for device, used in used_bytes.items():
            lookout, state = (
                self._lookouts.get(device),
                self._hints.optimizer_state_bytes.get(device, 0),
            )
            if lookout is not None and state and used + state > lookout.forecaster.limit_bytes:
                self._consider(
                    lookout,
                    _no_room_for_state(used, lookout.forecaster.limit_bytes),
                    time.monotonic(),
                )

    def risks(self) -> list[Risk]:
        """The newest forecast of each device."""
        return [
            risk_of(self._rank, lookout.device, lookout.newest)
            for lookout in self._lookouts.values()
            if lookout.newest
        ]

    def _consider(self, lookout: DeviceForecast, forecast: Forecast, now: float) -> None:
        level, is_recent = forecast.level, now - lookout.told_at < REPEAT_S
        if level not in PAGING_LEVELS:
            if level == "ok" and not lookout.is_calm:
                lookout.is_calm = True
                notify_user(f"{lookout.device.name}: no longer expected to run out of memory")
            if level == "ok" and not is_recent:
                lookout.told_level = "ok"
            return
        is_worse = LEVELS.index(level) > LEVELS.index(lookout.told_level)
        if is_recent and not is_worse:
            return
        risk = risk_of(self._rank, lookout.device, forecast)
        lookout.told_at, lookout.is_calm = now, False
        prediction = self._prediction() if lookout.device.id == self._trained else None
        notify_user(warning_text(risk, lookout.device.name, prediction))
        if is_worse:
            lookout.told_level = level
            if self.worst is None or LEVELS.index(level) >= LEVELS.index(self.worst.level):
                self.worst = risk
            self._on_risk(risk)


def warning_text(risk: Risk, device_name: str, prediction: Estimate | None = None) -> str:
    """The warning as a person reads it at a terminal: when, how full, why, against what was predicted, what to change and what it saves."""
    lines = [
        f"WARNING: step {risk.step:,}: {device_name} will run out of memory {_when(risk)}: "
        f"{format_bytes(risk.used_bytes)} of {format_bytes(risk.limit_bytes)} used"
        + (
            f", {format_bytes(risk.growth_bytes_per_step)} more a step"
            if risk.growth_bytes_per_step
            else ""
        )
        + "."
    ]
    if risk.cause:
        advice = advice_for_cause(risk.cause, prediction.advice if prediction is not None else ())
        lines += [f"  cause: {risk.cause}. {advice.summary}", f"  change: {advice.change}"]
    if prediction is not None:
        predicted = (
            f"{format_bytes(prediction.peak_allocated_bytes)} at its peak (by {prediction.method})"
        )
        lines.append(f"  predicted: {predicted}; observed: {format_bytes(risk.used_bytes)}")
        best = max(prediction.advice, key=lambda item: item.saving_bytes, default=None)
        if best is not None and best.saving_bytes > 0:
            lines.append(
                f"  in this run {best.change} saves {format_bytes(best.saving_bytes)}: {_first_line(best.code)}"
            )
    return "\n".join(lines)


def _when(risk: Risk) -> str:
    if risk.cause == "eval":
        return "when it next evaluates or saves a checkpoint"
    if risk.eta_step is None:
        return "soon"
    when = f"in about {max(0, round(risk.eta_step - risk.step)):,} steps"
    return when if risk.eta_s is None else f"{when} ({format_duration(risk.eta_s)})"


def _first_line(code: str) -> str:
    return code.strip().partition("\n")[0]


def _no_room_for_state(used: int, limit: int) -> Forecast:
    return Forecast(
        step=0, level="critical", oom_probability=0.97, cause="optimizer_state", eta_step=1.0, eta_low=1.0, eta_high=1.0, used_bytes=used,
        limit_bytes=limit,
    )  # fmt: skip


def risk_of(rank: int, device: Device, forecast: Forecast) -> Risk:
    """A forecast for `device`, as it travels."""
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
