"""Forecasts of each device and the warnings that follow, without a server.

The server runs the same forecaster; here it gets samples a quarter of a second old, or while all is
calm, up to two seconds (`waiting_samples`).

1. A warning goes to stderr when the level rises above all that was reported, and again every minute
   while it lasts. A notice goes there once a run, from its first rank, and never after a warning.
2. The first of these also calls `on_risk`. A level that falls and rises again within a minute is
   the same warning: a forecast that hesitates must not cost a checkpoint each time.
3. "No longer expected" is reported once for each time that a warning was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from memagent.delivery.partial_batch import StreamColumns
from memagent.diagnostics import display_path, notify_user
from memagent.forecast import Forecast, Forecaster, GcProbe, Hints, feed_repetitions, select_columns
from memagent.forecast.types import LEAK_CAUSES, LEVELS, PAGING_LEVELS, Level
from memagent.local_forecast.waiting_samples import WaitingSamples
from memagent.probe.detached import forks_wait
from memagent.units import format_bytes, format_duration
from memagent.wire.messages import Device, Risk, Suspect

if TYPE_CHECKING:
    from memagent.estimator.estimate import Estimate

REPEAT_S = 60.0
"""Time after which a warning that lasts is reported again."""


class DeviceForecast(msgspec.Struct):
    """One device's forecaster and what was last reported about it."""

    device: Device
    forecaster: Forecaster
    is_secondary_host: bool
    waiting: WaitingSamples = msgspec.field(default_factory=WaitingSamples)
    newest: Forecast | None = None
    alarm: Forecast | None = None
    """The newest forecast that isn't calm."""
    alarm_step: int = 0
    """Step from which the cause of `alarm` has been forecast."""
    reported_level: Level = "ok"
    reported_at: float = float("-inf")
    is_calm: bool = True


SuspectSource = Callable[[Callable[[Suspect], bool]], tuple[Suspect, ...]]
"""Returns what keeps the growing memory, of the suspects for which its argument is true."""


class ForecastMonitor:
    """Forecasts for `devices`, the first of which the model trains on.

    Risk listeners get each new or worse risk, on the thread that calls `observe`; `on_growth` gets
    each forecast that isn't calm, and growth worth a diagnosis, on that thread too. `take_suspects`
    is called for a warning. `gc_probe`, `page_cost`: see `Forecaster`.
    roots: files are displayed relative to these.
    """

    def __init__(
        self,
        rank: int,
        devices: Sequence[Device],
        hints: Hints,
        *,
        gc_probe: GcProbe | None = None,
        page_cost: float | None = None,
        on_growth: Callable[[Forecast], None] = lambda _: None,
        take_suspects: SuspectSource = lambda _: (),
        roots: Sequence[str] = (),
    ) -> None:
        self.prediction: Estimate | None = None
        """The newest estimate for the first device."""
        self._rank = rank
        self._may_notice = rank == 0  # ranks are mostly equal: one line will do
        self._hints = hints
        self._on_growth = on_growth
        self._take_suspects = take_suspects
        self._roots = roots
        self._risk_listeners: list[Callable[[Risk], None]] = []
        self._trained_device = devices[0].id
        self._forecasts: dict[str, DeviceForecast] = {}
        for device in devices:
            if device.limit_bytes:
                is_secondary = device.kind == "host" and device.id != self._trained_device
                forecaster = hints.forecaster(
                    device.id,
                    device.limit_bytes,
                    device_bytes=device.shared_bytes,
                    is_secondary_host=is_secondary,
                    gc_probe=gc_probe,
                )
                if page_cost is not None:
                    forecaster.page_cost = page_cost
                self._forecasts[device.id] = DeviceForecast(device, forecaster, is_secondary)

    def add_risk_listener(self, listener: Callable[[Risk], None]) -> None:
        self._risk_listeners.append(listener)

    def set_hints(self, hints: Hints) -> None:
        """Apply new hints to all forecasters; on any thread."""
        self._hints = hints
        for entry in self._forecasts.values():
            hints.apply_to(
                entry.forecaster, entry.device.id, is_secondary_host=entry.is_secondary_host
            )

    def observe(self, stream: str, columns: StreamColumns) -> None:
        """Forecast from consecutive samples of one stream."""
        entry = self._forecasts.get(stream)
        if entry is None:
            return
        now = time.monotonic()
        entry.waiting.add(columns, entry.forecaster, now)
        if not entry.waiting.may_wait(entry.forecaster, now):
            self._forecast(entry, now)

    def catch_up(self) -> None:
        """Forecast from the samples that wait, as no more will come."""
        for entry in self._forecasts.values():
            if entry.waiting:
                self._forecast(entry, time.monotonic())

    def _forecast(self, entry: DeviceForecast, now: float) -> None:
        columns = entry.waiting.take(now)
        selected = select_columns(columns, is_secondary_host=entry.is_secondary_host)
        for forecast in feed_repetitions(entry.forecaster, selected):
            entry.newest = forecast
            if forecast.level != "ok":
                if entry.alarm is None or forecast.cause != entry.alarm.cause:
                    entry.alarm_step = forecast.step
                entry.alarm = forecast
        if entry.newest is not None:
            self._report(entry, entry.newest, now)
            if entry.newest.level != "ok":
                self._on_growth(entry.newest)
            elif entry.forecaster.is_worth_diagnosis:
                self._on_growth(msgspec.structs.replace(entry.newest, cause="leak"))

    def check_state_fits(self, used_bytes: Mapping[str, int]) -> None:
        """Warn if the optimizer's state won't fit in what is left of the devices' limits."""
        for device, used in used_bytes.items():
            entry = self._forecasts.get(device)
            state = self._hints.optimizer_state_bytes.get(device, 0)
            if entry is not None and state and used + state > entry.forecaster.limit_bytes:
                forecast = Forecast(
                    step=0,
                    level="critical",
                    oom_probability=0.97,
                    cause="optimizer_state",
                    eta_step=1.0,
                    eta_low=1.0,
                    eta_high=1.0,
                    used_bytes=used,
                    limit_bytes=entry.forecaster.limit_bytes,
                )
                self._report(entry, forecast, time.monotonic())

    def risks(self) -> list[Risk]:
        """Return the newest forecast of each device."""
        return [
            risk_of(self._rank, entry.device, entry.newest)
            for entry in self._forecasts.values()
            if entry.newest
        ]

    def time_left_s(self) -> float:
        """Return the seconds until memory runs out, infinity if it never does.

        0 for any risk, and before the first forecast of a device.
        """
        return min(map(_time_left_s, self._forecasts.values()), default=math.inf)

    def at_the_end(self) -> dict[str, Any] | None:
        """Return the newest forecast for the device that the model trains on, unless it's calm.

        One that became calm counts if memory hasn't come down since: growth ends at the limit.
        `first_step` is the step from which its cause has been forecast.
        """
        entry = self._forecasts.get(self._trained_device)
        if entry is None or entry.alarm is None or entry.newest is None:
            return None
        if (entry.newest.used_bytes or 0) < (entry.alarm.used_bytes or 0):
            return None
        return {**msgspec.structs.asdict(entry.alarm), "first_step": entry.alarm_step}

    def _report(self, entry: DeviceForecast, forecast: Forecast, now: float) -> None:
        level = forecast.level
        is_recent = now - entry.reported_at < REPEAT_S
        if level not in PAGING_LEVELS:
            self._report_calmer(entry, forecast, is_recent=is_recent)
            return
        is_worse = LEVELS.index(level) > LEVELS.index(entry.reported_level)
        if is_recent and not is_worse:
            return
        risk = risk_of(self._rank, entry.device, forecast, self._suspects_of(entry, forecast))
        entry.reported_at = now
        entry.is_calm = False
        self._may_notice = False
        prediction = self.prediction if entry.device.id == self._trained_device else None
        notify_user(warning_text(risk, entry.device.name, prediction, self._roots))
        if is_worse:
            entry.reported_level = level
            for listener in self._risk_listeners:
                listener(risk)

    def _suspects_of(self, entry: DeviceForecast, forecast: Forecast) -> tuple[Suspect, ...]:
        """Return what keeps the growing memory: of a GPU tensors, beside it on the host others."""
        if forecast.cause not in LEAK_CAUSES:
            return ()
        with forks_wait():
            from memagent.oom.report import KINDS_WITHOUT_TENSORS

        is_sole_host = entry.device.kind == "host" and not entry.is_secondary_host
        return self._take_suspects(
            lambda item: (
                is_sole_host or entry.is_secondary_host == (item.kind in KINDS_WITHOUT_TENSORS)
            )
        )

    def _report_calmer(self, entry: DeviceForecast, forecast: Forecast, *, is_recent: bool) -> None:
        """Report a notice, or the end of a warning; `is_recent`: the warning was a minute ago."""
        if forecast.level == "notice" and self._may_notice:
            self._may_notice = False
            notify_user(notice_text(risk_of(self._rank, entry.device, forecast), entry.device.name))
        if forecast.level != "ok":
            return
        if not entry.is_calm:
            entry.is_calm = True
            notify_user(f"{entry.device.name}: no longer expected to run out of memory")
        if not is_recent:
            entry.reported_level = "ok"


def _time_left_s(entry: DeviceForecast) -> float:
    newest = entry.newest
    if newest is None or newest.level != "ok":
        return 0.0
    return min(entry.waiting.time_left_s, math.inf if newest.eta_s is None else newest.eta_s)


def warning_text(
    risk: Risk, device_name: str, prediction: Estimate | None = None, roots: Sequence[str] = ()
) -> str:
    """Return the warning for a terminal.

    It says when memory runs out, how full it is, why, what to change, how that compares with the
    prediction, and how much a change saves that isn't the suspect's. roots: see `ForecastMonitor`.
    """
    with forks_wait():
        from memagent.estimator.advice.by_cause import advice_for_cause

    lines = [
        f"WARNING: step {risk.step:,}: {device_name} will run out of memory {_eta_text(risk)}: "
        f"{_usage_text(risk)}"
    ]
    if risk.cause:
        advice = advice_for_cause(risk.cause, prediction.advice if prediction is not None else ())
        lines.append(f"  cause: {risk.cause}. {advice.summary}")
        lines += _suspect_lines(risk, roots) or [f"  change: {advice.change}"]
    if risk.predecessor:
        lines.append(f"  {risk.predecessor}")
    if prediction is not None:
        lines.append(
            f"  predicted peak: {format_bytes(prediction.peak_allocated_bytes)} "
            f"(by {prediction.method}); observed: {format_bytes(risk.used_bytes)}"
        )
        best = max(prediction.advice, key=lambda item: item.saving_bytes, default=None)
        if best is not None and best.saving_bytes > 0 and not risk.suspects:
            code = best.code.strip().partition("\n")[0]
            saving = format_bytes(best.saving_bytes)
            lines.append(f"  in this run {best.change} saves {saving}: {code}")
    return "\n".join(lines)


def _suspect_lines(risk: Risk, roots: Sequence[str]) -> list[str]:
    """Return where the first suspect grows and what to change there, with code; [] without one."""
    if not risk.suspects:
        return []
    with forks_wait():
        from memagent.estimator.advice.by_cause import code_for_suspect
        from memagent.oom.report import rate_text

    first = risk.suspects[0]
    growth = None if risk.growth_bytes_per_step is None else round(risk.growth_bytes_per_step)
    rate = rate_text(first.kind, first.bytes_per_step, growth)
    where = display_path(first.location, roots)
    code = code_for_suspect(first.to_dict(), on_host=risk.device == "host")
    return [
        f"  suspect: {where}: {first.holder}{rate}.",
        f"  change: {first.fix}",
        *(f"      {line}" for line in code.splitlines()),
    ]


def notice_text(risk: Risk, device_name: str) -> str:
    """Return the notice for a terminal: memory may run out, but not soon."""
    return (
        f"NOTICE: step {risk.step:,}: {device_name} may run out of memory {_eta_text(risk)}: "
        f"{_usage_text(risk)} A warning follows if that becomes likely."
    )


def _usage_text(risk: Risk) -> str:
    growth = risk.growth_bytes_per_step
    used = f"{format_bytes(risk.used_bytes)} of {format_bytes(risk.limit_bytes)} used"
    return used + (f", growing by {format_bytes(growth)} per step." if growth else ".")


def _eta_text(risk: Risk) -> str:
    if risk.cause == "eval":
        return "when it next evaluates or saves a checkpoint"
    if risk.cause == "tail":
        return "in a step with an unusually large batch"
    if risk.eta_step is None:
        return "soon"
    steps = f"in about {max(0, round(risk.eta_step - risk.step)):,} steps"
    return steps if risk.eta_s is None else f"{steps} ({format_duration(risk.eta_s)})"


def risk_of(
    rank: int, device: Device, forecast: Forecast, suspects: tuple[Suspect, ...] = ()
) -> Risk:
    """Return the wire message of a forecast for `device`."""
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
        grown_bytes=forecast.grown_bytes,
        predecessor=forecast.predecessor,
        suspects=suspects,
    )
