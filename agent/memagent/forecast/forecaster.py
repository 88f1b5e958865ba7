"""The streaming forecaster of one rank and device.

1. The run dies in the step whose need reaches the limit: need = floor (allocated after the step) + excess (how far recent steps
   peaked above their floor) + inactive split blocks + what other processes hold.
2. Each of these is watched as a series of its own (`Trail`), and those that grow in a lasting way (`find_trend`) are extrapolated
   together; the one that grows fastest is the cause.
3. A trend pages only as far ahead as half the time it was watched, and is a notice up to twice that: most harmless growth ends
   before that, and most fatal growth does not. A trend that ends beyond the planned steps is silent.
4. Some deaths are known without a trend: optimizer state that is not there yet, the largest input that is still to come.
5. A saw tooth that has fallen once is judged by its low points. Before a leak pages, `gc_probe`, where given, collects garbage and reads
   the floor again: what falls then was no leak.
6. A level once reached is kept while its reason stands with double tolerance, so that it does not flap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from memagent.forecast.series import Excess, StepClock
from memagent.forecast.trail import Trail
from memagent.forecast.trend import Trend, find_trend

Level = Literal["ok", "notice", "warning", "critical"]

PAGE_AHEAD, NOTICE_AHEAD = 0.5, 2.0
"""How far a trend is believed, as a multiple of how long it was watched."""
CRITICAL_S = 120.0
TRIFLE = 0.003
"""Growth below this share of the limit is not looked at."""
SETTLING_STEPS = 5
"""First steps of a run (lazy allocation, autotuning) that are no part of any trend."""


@dataclass(frozen=True)
class Forecast:
    """What is known after `step`. Steps are the run's own; `eta_*` are None where nothing is expected to run out.

    `oom_probability` is that of running out before the planned end (or the horizon). Sizes are bytes.
    """

    step: int
    level: Level = "ok"
    oom_probability: float = 0.0
    cause: str | None = None
    eta_step: float | None = None
    eta_low: float | None = None
    eta_high: float | None = None
    eta_s: float | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
    growth_bytes_per_step: float | None = None
    growing_since_step: int | None = None


@dataclass(frozen=True)
class _Outlook:
    """Where the trends lead: steps from now until the limit is reached."""

    cause: str
    steps_left: float
    steps_left_low: float
    steps_left_high: float
    watched_steps: float
    slope: float
    since_step: float
    limit_bytes: int


class Forecaster:
    """Feed `update` once a sample, in order; it returns what is known then. All sizes are bytes, times seconds.

    limit_bytes: what the process can use of the device. host_limit_bytes: the same of the host, for `host_used_bytes`.
    total_steps: planned optimizer steps. optimizer_state_bytes: what the optimizer will allocate in its first step.
    max_input_size: the largest input that can come. epoch_steps: steps an epoch. predicted_peak_bytes: the estimator's answer.
    gc_probe: collects garbage and returns the allocated bytes after it, or None where it can't. Raises ValueError for a limit
    that is not positive.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        host_limit_bytes: int | None = None,
        total_steps: int | None = None,
        optimizer_state_bytes: int | None = None,
        max_input_size: float | None = None,
        epoch_steps: int | None = None,
        predicted_peak_bytes: int | None = None,
        gc_probe: Callable[[], int | None] | None = None,
    ) -> None:
        if limit_bytes <= 0 or (host_limit_bytes is not None and host_limit_bytes <= 0):
            raise ValueError(f"a limit must be more than zero bytes, not {limit_bytes} and {host_limit_bytes}")
        self.limit_bytes, self.host_limit_bytes, self.total_steps = limit_bytes, host_limit_bytes, total_steps
        self._state_bytes, self._max_input = optimizer_state_bytes, max_input_size
        self._epoch_steps, self._predicted_peak, self._gc_probe = epoch_steps, predicted_peak_bytes, gc_probe
        self._begin()

    def _begin(self) -> None:
        self._step: int | None = None
        self._first_step = 0
        self._clock = StepClock()
        self._excess = Excess()
        self._trails = {
            "leak": Trail(min),
            "fragmentation": Trail(min),
            "other_processes": Trail(min),
            "input": Trail(max),
            "host_memory": Trail(min),
        }
        self._trends: dict[str, Trend] = {}
        self._since_looked = 0
        self._floor = self._split = self._others = self._host = 0.0
        self._used: int | None = None
        self._forecast = Forecast(step=0)
        self._next_gc_step = 0

    def update(
        self,
        step: int,
        *,
        time_s: float | None = None,
        allocated_bytes: int | None = None,
        peak_allocated_bytes: int | None = None,
        reserved_bytes: int | None = None,
        inactive_split_bytes: int | None = None,
        alloc_retries: int | None = None,
        device_used_bytes: int | None = None,
        host_used_bytes: int | None = None,
        input_size: float | None = None,
        phase: str = "train",
        optimizer_steps: int | None = None,
    ) -> Forecast:
        """Take the readings at the end of `step`; None is a reading that was not taken. A step that goes back begins anew."""
        del (
            alloc_retries
        )  # retries alone predict nothing (torchtitan 2389 survives six of them): kept for the tail's forecast
        if self._step is not None and step <= self._step:
            self._begin()
        if self._step is None or optimizer_steps == 0:
            self._first_step = step  # before the first optimizer step nothing has settled
        self._step = step
        self._clock.tick(step, time_s)
        floor = allocated_bytes if allocated_bytes is not None else device_used_bytes
        new = False
        if floor is not None:
            self._used = max(floor, peak_allocated_bytes or 0)
            new = self._watch_device(
                step,
                floor,
                peak_allocated_bytes,
                reserved_bytes,
                inactive_split_bytes,
                device_used_bytes,
                input_size,
                phase,
            )
        if host_used_bytes is not None and self.host_limit_bytes:
            self._host = host_used_bytes
            new = self._watch("host_memory", step, host_used_bytes) or new
        self._since_looked += 1
        if new and self._since_looked >= 4:
            self._since_looked = 0
            self._look()
        return self._conclude(step, optimizer_steps)

    def _watch_device(
        self,
        step: int,
        floor: int,
        peak: int | None,
        reserved: int | None,
        split: int | None,
        used: int | None,
        input_size: float | None,
        phase: str,
    ) -> bool:
        self._floor = floor
        excess = max(0, (peak or floor) - floor)
        self._excess.add(excess, input_size if phase == "train" else None)
        new = self._watch("leak", step, floor)
        if self._excess.follows_input:
            self._watch("input", step, excess)
        if split is not None:
            self._split = split
            self._watch("fragmentation", step, split)
        if used is not None and reserved is not None:
            self._others = max(0, used - max(reserved, floor))
            self._watch("other_processes", step, self._others)
        return new

    def _watch(self, cause: str, step: int, value: float) -> bool:
        return step - self._first_step >= SETTLING_STEPS and self._trails[cause].add(step, value)

    def _look(self) -> None:
        """Fit the trends anew."""
        self._trends = {}
        for cause, trail in self._trails.items():
            limit = self.host_limit_bytes if cause == "host_memory" else self.limit_bytes
            trend = find_trend(trail.steps, trail.values, TRIFLE * (limit or inf))
            if trend is not None:
                self._trends[cause] = trend

    def _conclude(self, step: int, optimizer_steps: int | None) -> Forecast:
        known = self._known_death(step, optimizer_steps)
        forecast = known or self._from_trends(step)
        self._forecast = forecast
        return forecast

    def _known_death(self, step: int, optimizer_steps: int | None) -> Forecast | None:
        need = self._floor + self._excess.recent + self._split + self._others
        if self._state_bytes and optimizer_steps == 0 and need + self._state_bytes > self.limit_bytes:
            return self._sure(step, "optimizer_state", 0.97, step + 1)
        largest = self._excess.at_input(self._max_input)
        if largest is not None and need - self._excess.recent + largest > self.limit_bytes * 1.01:
            return self._sure(step, "input", 0.85, None)
        return None

    def _sure(self, step: int, cause: str, probability: float, eta_step: float | None) -> Forecast:
        return Forecast(
            step=step,
            level="critical" if eta_step is not None else "warning",
            oom_probability=probability,
            cause=cause,
            eta_step=eta_step,
            eta_low=eta_step,
            eta_high=eta_step,
            eta_s=self._clock.seconds(1) if eta_step is not None else None,
            used_bytes=self._used,
            limit_bytes=self.limit_bytes,
        )

    def _from_trends(self, step: int) -> Forecast:
        outlook = self._outlook(step)
        quiet = Forecast(step=step, oom_probability=0.01, used_bytes=self._used, limit_bytes=self.limit_bytes)
        if outlook is None:
            return quiet
        level = self._level(step, outlook)
        if (
            level in ("warning", "critical")
            and outlook.cause == "leak"
            and not self._survives_collection(step, outlook)
        ):
            return quiet
        if level == "ok":
            return Forecast(
                step=step,
                oom_probability=0.03,
                used_bytes=self._used,
                limit_bytes=outlook.limit_bytes,
                growth_bytes_per_step=outlook.slope,
                growing_since_step=int(outlook.since_step),
            )
        ahead = outlook.steps_left / outlook.watched_steps
        return Forecast(
            step=step,
            level=level,
            oom_probability=0.97 / (1 + (ahead / 1.2) ** 2),
            cause=outlook.cause,
            eta_step=step + outlook.steps_left,
            eta_low=step + outlook.steps_left_low,
            eta_high=step + outlook.steps_left_high,
            eta_s=self._clock.seconds(outlook.steps_left),
            used_bytes=int(self._host) if outlook.cause == "host_memory" else self._used,
            limit_bytes=outlook.limit_bytes,
            growth_bytes_per_step=outlook.slope,
            growing_since_step=int(outlook.since_step),
        )

    def _outlook(self, step: int) -> _Outlook | None:
        device = {cause: trend for cause, trend in self._trends.items() if cause not in self._excluded()}
        need = self._floor + self._excess.recent + self._split + self._others
        outlooks = [self._reach(device, self.limit_bytes - need, self.limit_bytes)]
        if "host_memory" in self._trends and self.host_limit_bytes:
            only = {"host_memory": self._trends["host_memory"]}
            outlooks.append(self._reach(only, self.host_limit_bytes - self._host, self.host_limit_bytes))
        return min((found for found in outlooks if found), key=lambda found: found.steps_left, default=None)

    def _excluded(self) -> tuple[str, ...]:
        """What is no trend of the device: the host's, and that of an input whose largest is known to fit."""
        largest_is_known = self._excess.at_input(self._max_input) is not None
        return ("host_memory", "input") if largest_is_known else ("host_memory",)

    def _reach(self, trends: dict[str, Trend], headroom: float, limit: int) -> _Outlook | None:
        if not trends:
            return None
        cause = max(trends, key=lambda name: trends[name].slope)
        leading = trends[cause]
        slope = sum(trend.slope for trend in trends.values())
        low, high = sum(t.slope_high for t in trends.values()), sum(t.slope_low for t in trends.values())
        left = max(0.0, headroom)
        return _Outlook(
            cause, left / slope, left / low, left / high, leading.watched_steps, slope, leading.since_step, limit
        )

    def _level(self, step: int, outlook: _Outlook) -> Level:
        kept = 2.0 if self._forecast.level in ("warning", "critical") else 1.0
        planned_left = self.total_steps - step if self.total_steps else inf
        if outlook.steps_left > planned_left * (1.1 if kept > 1 else 1.0):
            return "ok"
        page = PAGE_AHEAD * kept
        if self._predicted_peak and self._floor + self._excess.recent < 0.98 * self._predicted_peak:
            page /= 2  # the estimator expects this much: growth up to there needs more evidence
        if outlook.steps_left <= page * outlook.watched_steps and not self._ends_with_epoch(step, outlook):
            seconds = self._clock.seconds(outlook.steps_left)
            return "critical" if seconds is not None and seconds <= CRITICAL_S else "warning"
        return "notice" if outlook.steps_left <= NOTICE_AHEAD * outlook.watched_steps else "ok"

    def _ends_with_epoch(self, step: int, outlook: _Outlook) -> bool:
        """Growth watched for less than an epoch may be freed at its end, if it gets there."""
        if not self._epoch_steps or outlook.cause != "leak" or outlook.watched_steps > 1.2 * self._epoch_steps:
            return False
        left_of_epoch = self._epoch_steps - (step - self._first_step) % self._epoch_steps
        return outlook.steps_left > left_of_epoch

    def _survives_collection(self, step: int, outlook: _Outlook) -> bool:
        """False when collecting garbage brought the floor down: a saw tooth of reference cycles, judged anew from there."""
        if self._gc_probe is None or step < self._next_gc_step:
            return True
        self._next_gc_step = step + max(100, int(outlook.watched_steps / 2))
        floor = self._gc_probe()
        grown = outlook.slope * outlook.watched_steps
        if floor is None or self._floor - floor < 0.5 * grown:
            return True
        self._trails["leak"].clear()
        self._trends.pop("leak", None)
        return False

    @property
    def newest(self) -> Forecast:
        """What the last update returned."""
        return self._forecast
