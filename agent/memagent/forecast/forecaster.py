"""The streaming forecaster of one rank and device.

1. The run dies in the step whose need reaches the limit: need = floor (allocated after the step) +
   excess (how far recent steps peaked above their floor) + unusable reserve + what other processes
   use (`signals`, `overhead`).
2. Each of these is a series (`bucketed_series`). Those that grow in a lasting way (`trend`)
   are extrapolated together, with their bend (`projection`). The one that grows most is the cause.
3. How urgent that is depends on how long the trend has lasted and on what is planned (`levels`).
4. Some OOMs need no trend: those of sudden peaks (`sudden_peaks`).
5. Before a leak pages, `gc_probe` collects garbage, if given. Memory that this frees wasn't leaked
   (`gc_check`).
6. A level, once reached, stays while its reason holds with double tolerance, and the report changes
   only if the change is material (`hysteresis`).
"""

from __future__ import annotations

from math import inf

from memagent.forecast.calibration import Evidence, calibrated_interval
from memagent.forecast.gc_check import GarbageCheck, GcProbe
from memagent.forecast.hysteresis import CalmGrowth, ForecastHysteresis
from memagent.forecast.knowledge import Knowledge, nearest_projection
from memagent.forecast.levels import (
    PAGE_COST,
    Situation,
    evidence_of,
    is_worth_diagnosis,
    level_of,
    probability_of,
    reach_of,
    worthwhile,
)
from memagent.forecast.predecessor import Predecessor
from memagent.forecast.projection import Projection
from memagent.forecast.running_statistics import StepClock
from memagent.forecast.signals import Signals, valid_reading
from memagent.forecast.sudden_peaks import MIN_PROBABILITY, SuddenOom, SuddenPeaks
from memagent.forecast.types import LEVELS, PAGING_LEVELS, Cause, Forecast, Growing, Level

# Probabilities and factors were fitted to the traces of the forecast benchmark (docs/forecast.md).
SETTLING_STEPS = 5
"""First steps of a run, not part of any trend: lazy allocation, autotuning."""
MAX_SILENT_PROBABILITY = 0.3
"""Reported at most for growth that isn't a notice."""
GARBAGE_CAUSES: tuple[Cause, ...] = ("leak", "fragmentation")
"""Growth of what garbage holds, and of the free pieces around it."""
HORIZON_STEPS = 1000
"""A run of unknown length is expected to last as long again, and at least this many steps."""


class Forecaster:
    """Call `update` once a sample, in order; it returns the forecast. Sizes are bytes, times
    seconds.

    limit_bytes: what the process can use of the device. device_bytes: what it shares with other
    processes, if that is more: they use the rest first. host_limit_bytes: the same of the host, for
    `host_used_bytes`. total_steps: planned optimizer steps. optimizer_state_bytes: what the
    optimizer will allocate in its first step. max_input_size: the largest possible input.
    epoch_steps: steps per epoch. predicted_peak_bytes: the estimator's prediction. gc_probe:
    collects garbage and returns the allocated bytes after it, or None if later samples will show
    it; see `gc_check`. page_cost: cost of a page, as a share of that of a lost run. Raises
    ValueError if a limit isn't positive.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        host_limit_bytes: int | None = None,
        device_bytes: float | None = None,
        total_steps: int | None = None,
        optimizer_state_bytes: int | None = None,
        max_input_size: float | None = None,
        epoch_steps: int | None = None,
        predicted_peak_bytes: int | None = None,
        gc_probe: GcProbe | None = None,
        page_cost: float = PAGE_COST,
    ) -> None:
        if limit_bytes <= 0 or (host_limit_bytes is not None and host_limit_bytes <= 0):
            raise ValueError(
                f"Limits must be positive, got {limit_bytes} and {host_limit_bytes} bytes."
            )
        self.limit_bytes = limit_bytes
        self.host_limit_bytes = host_limit_bytes
        self._device_bytes = device_bytes or limit_bytes
        self.total_steps = total_steps
        self._sudden = SuddenPeaks(optimizer_state_bytes, max_input_size)
        self._knowledge = Knowledge(epoch_steps, predicted_peak_bytes)
        self._gc_probe = gc_probe
        self.page_cost = page_cost
        self._reset()

    def _reset(self) -> None:
        self._step: int | None = None
        self._first_step = 0
        self._clock = StepClock()
        self._signals = Signals(self.limit_bytes, self.host_limit_bytes, self._device_bytes)
        self._forecast = Forecast(step=0)
        self.is_worth_diagnosis = False
        """True if a diagnosis should find what keeps the growing memory, at any level."""
        self._hysteresis = ForecastHysteresis()
        self._gc_check = GarbageCheck(self._gc_probe)
        self._calm_growth = CalmGrowth()

    def learn(
        self,
        *,
        optimizer_state_bytes: int | None = None,
        max_input_size: float | None = None,
        epoch_steps: int | None = None,
        predicted_peak_bytes: int | None = None,
        eval_bytes: int | None = None,
        grows: Growing | None = None,
        growth_end_bytes: int | None = None,
        predecessor: Predecessor | None = None,
    ) -> None:
        """Update what is known in addition to the samples; None changes nothing.

        eval_bytes: how far an evaluation or a checkpoint goes above the floor, from a preflight.
        grows: what keeps the growing memory, from the leak finder. growth_end_bytes: memory held
        after a step once a growing buffer is full. predecessor: the last run of the same program.
        """
        self._calm_growth.drop()
        self._sudden.learn(optimizer_state_bytes, max_input_size, eval_bytes)
        self._knowledge.learn(
            epoch_steps=epoch_steps,
            predicted_peak_bytes=predicted_peak_bytes,
            predecessor=predecessor,
        )
        floor = None if self._step is None else self._signals.floor
        self._knowledge.learn_growth(self._step or 0, grows, growth_end_bytes, floor)

    @property
    def newest(self) -> Forecast:
        """Return what the last update returned."""
        return self._forecast

    @property
    def evidence(self) -> tuple[Evidence, float] | None:
        """Return what the newest probability follows from, if memory grows."""
        step = self._step or 0
        nearest = self._nearest(step)
        if nearest is None:
            return None
        situation = self._situation(step, nearest)
        return evidence_of(nearest, situation, reach_of(nearest, situation))

    @property
    def is_calm(self) -> bool:
        """Return True if nothing grows, and nothing else is expected to run out of memory."""
        newest = self._forecast
        is_unlikely = newest.level == "ok" and newest.oom_probability <= MIN_PROBABILITY
        return is_unlikely and not self._signals.trends

    @property
    def max_count(self) -> int:
        """Return how many steps that are like the newest one may be given at once.

        Only one unless nothing grows: each of more may change the level.
        """
        return self._signals.room if self.is_calm else 1

    @property
    def tolerance_bytes(self) -> float:
        """Return by how much the sizes of steps may differ that are alike."""
        return self._signals.tolerance_bytes

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
        limit_bytes: int | None = None,
        host_limit_bytes: int | None = None,
        count: int = 1,
    ) -> Forecast:
        """Return the forecast after the readings at the end of `step`; None if one wasn't taken.

        limit_bytes, host_limit_bytes: the limits as they are now, since they may change.

        count: steps with about these readings, the last of them `step`; at most `max_count`.

        A step that goes back starts again. Retries alone predict nothing (torchtitan 2389 survives
        six of them), but show what of the reserve is unusable.
        """
        if limit_bytes is not None or host_limit_bytes is not None:
            self._set_limits(
                valid_reading(limit_bytes) or None, valid_reading(host_limit_bytes) or None
            )
        if self._step is not None and step <= self._step:
            self._reset()
        if self._step is None or optimizer_steps == 0:
            self._first_step = step  # before the first optimizer step nothing has settled
        self._step = step
        self._clock.tick(step, time_s, count)
        device_used = valid_reading(device_used_bytes)
        allocated = valid_reading(allocated_bytes)
        is_training = phase == "train"
        self._signals.update(
            step,
            is_settled=step - self._first_step >= SETTLING_STEPS,
            floor=allocated if allocated is not None else device_used,
            peak=valid_reading(peak_allocated_bytes),
            reserved=valid_reading(reserved_bytes),
            split=valid_reading(inactive_split_bytes),
            retries=valid_reading(alloc_retries),
            device_used=device_used,
            host=valid_reading(host_used_bytes),
            input_size=valid_reading(input_size) if is_training else None,
            is_training=is_training,
            count=count,
        )
        self._sudden.note_phase(phase, self._signals, self.limit_bytes, optimizer_steps)
        if self._signals.has_stopped:
            self._hysteresis.reset()  # no more of it is to come, so nothing may flap
        sudden = self._sudden.certain(
            self._signals, self.limit_bytes, optimizer_steps, self._horizon_steps(step)
        )
        forecast = self._by_sudden(step, sudden) if sudden else self._by_trends(step)
        if sudden and sudden.shortage_bytes is not None:
            forecast = self._by_growth(step, sudden, sudden.shortage_bytes) or forecast
        self._forecast = self._hysteresis.settle(forecast, self._clock.seconds(1))
        return self._forecast

    def _set_limits(self, limit: float | None, host_limit: float | None) -> None:
        if limit in (None, self.limit_bytes) and host_limit in (None, self.host_limit_bytes):
            return
        self.limit_bytes = int(limit or self.limit_bytes)
        if self.host_limit_bytes is not None:
            self.host_limit_bytes = int(host_limit or self.host_limit_bytes)
        self._signals.set_limits(self.limit_bytes, self.host_limit_bytes)
        self._calm_growth.drop()

    def _horizon_steps(self, step: int) -> float:
        """Return in how many steps a batch may be too large."""
        if self.total_steps:
            return self.total_steps - step
        return max(HORIZON_STEPS, step - self._first_step)

    def _by_sudden(self, step: int, sudden: SuddenOom) -> Forecast:
        return self._build(
            step,
            worthwhile(sudden.level, sudden.probability, self.page_cost),
            sudden.cause,
            sudden.probability,
            steps_left=(1, 1, 1) if sudden.is_next else None,
        )

    def _build(
        self,
        step: int,
        level: Level,
        cause: Cause | None,
        probability: float,
        *,
        steps_left: tuple[float, float, float] | None = None,
        projection: Projection | None = None,
    ) -> Forecast:
        """Return a forecast. `steps_left`: expected, at least, at most."""
        is_host = projection is not None and projection.cause == "host_memory"
        used = self._signals.host if is_host else self._signals.used
        expected, low, high = (
            (step + steps for steps in steps_left) if steps_left else (None, None, None)
        )
        return Forecast(
            step=step,
            level=level,
            oom_probability=probability,
            cause=cause,
            eta_step=expected,
            eta_low=low,
            eta_high=high,
            eta_s=self._clock.seconds(steps_left[0]) if steps_left else None,
            used_bytes=None if used is None else int(used),
            limit_bytes=projection.limit_bytes if projection else self.limit_bytes,
            growth_bytes_per_step=projection.slope if projection else None,
            growing_since_step=self._signals.growing_since(projection.cause)
            if projection
            else None,
            grown_bytes=self._signals.grown_bytes(projection.cause) if projection else None,
            predecessor=self._knowledge.sentence if level != "ok" else None,
        )

    # -- trends ---------------------------------------------------------------------------------

    def _by_trends(self, step: int) -> Forecast:
        signals, calm = self._signals, self._calm_growth
        used = signals.need + signals.host
        if calm.nearest and calm.holds(step, used, signals.revision):
            return self._build(step, "ok", None, calm.probability, projection=calm.nearest)
        calm.drop()
        nearest = self._nearest(step)
        self.is_worth_diagnosis = is_worth_diagnosis(nearest)
        if nearest is None:
            tail = self._sudden.by_tail(signals, self.limit_bytes, self._horizon_steps(step))
            return self._by_sudden(step, tail)
        situation = self._situation(step, nearest)
        reach = reach_of(nearest, situation)
        level = level_of(nearest, situation, reach)
        is_calm = level == self._forecast.level == "ok" and not self._knowledge.predecessor
        if level != "ok" and nearest.cause in GARBAGE_CAUSES:
            level = self._check_garbage(step, nearest, level)
        probability = probability_of(nearest, situation, reach)
        level = worthwhile(level, probability, self.page_cost)
        if level == "ok":
            # a high probability next to the level ok would contradict it
            probability = min(probability, MAX_SILENT_PROBABILITY)
            if is_calm:
                calm.keep(step, nearest, probability, used, signals.revision)
            return self._build(step, "ok", None, probability, projection=nearest)
        return self._build(
            step,
            level,
            nearest.cause,
            probability,
            steps_left=(nearest.steps_left, *calibrated_interval(nearest, self._knowledge.outcome)),
            projection=nearest,
        )

    def _by_growth(self, step: int, sudden: SuddenOom, shortage_bytes: float) -> Forecast | None:
        """Return the forecast of growth that has taken the room of a measured evaluation.

        None if the evaluation wouldn't fit without the growth either.
        """
        nearest = self._nearest(step)
        if nearest is None or nearest.slope * nearest.span_steps < shortage_bytes:
            return None
        situation = self._situation(step, nearest)
        by_trend = level_of(nearest, situation, reach_of(nearest, situation))
        return self._build(
            step,
            worthwhile(
                "critical" if by_trend == "critical" else sudden.level,
                sudden.probability,
                self.page_cost,
            ),
            nearest.cause,
            sudden.probability,
            steps_left=(nearest.steps_left, *calibrated_interval(nearest, self._knowledge.outcome)),
            projection=nearest,
        )

    def _planned_steps_left(self, step: int) -> float:
        return max(0, self.total_steps - step) if self.total_steps else inf

    def _nearest(self, step: int) -> Projection | None:
        """Return the projection of the memory that runs out first, as the predecessor ended it."""
        nearest = nearest_projection(
            step,
            self._signals,
            self._knowledge.growth,
            limit_bytes=self.limit_bytes,
            host_limit_bytes=self.host_limit_bytes,
            max_input_size=self._sudden.max_input_size,
        )
        if self._knowledge.predecessor is None:
            return nearest
        return self._knowledge.expect(
            nearest,
            step,
            headroom_bytes=self.limit_bytes - self._signals.expected_need(step),
            planned_steps_left=self._planned_steps_left(step),
        )

    def _situation(self, step: int, nearest: Projection) -> Situation:
        floor = self._signals.floor
        return self._knowledge.situation(
            step,
            previous=self._forecast.level,
            planned_steps_left=self._planned_steps_left(step),
            seconds_left=self._clock.seconds(nearest.steps_left),
            floor=floor,
            peak=floor + self._signals.excess.recent,
            headroom_bytes=self._signals.most_headroom(self.limit_bytes),
        )

    def _check_garbage(self, step: int, nearest: Projection, level: Level) -> Level:
        """Return the level of a leak after a garbage collection, or while one is pending."""
        verdict = self._gc_check.judge(
            step,
            floor=self._signals.floor,
            growth=nearest.slope * nearest.span_steps,
            span_steps=nearest.span_steps,
            steps_left=nearest.steps_left,
            step_s=self._clock.seconds(1),
        )
        if verdict == "garbage":
            # the rise of the garbage must not count for a later trend
            for cause in GARBAGE_CAUSES:
                self._signals.restart(cause)
            self._hysteresis.reset()
            return "ok"
        if verdict == "pending":
            waiting: Level = "notice" if level in PAGING_LEVELS else "ok"
            is_known = self._forecast.cause in GARBAGE_CAUSES
            known = self._forecast.level if is_known else waiting
            return min(level, max(waiting, known, key=LEVELS.index), key=LEVELS.index)
        return level
