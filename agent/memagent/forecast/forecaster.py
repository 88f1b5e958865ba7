"""The streaming forecaster of one rank and device.

1. The run dies in the step whose need reaches the limit: need = floor (allocated after the step) + excess (how far recent steps
   peaked above their floor) + inactive split blocks + what other processes hold (`signals`).
2. Each of these is watched as a series of its own (`trail`), and those that grow in a lasting way (`trend`) are extrapolated
   together, with their bend (`reach`); the one that grows most gives the cause.
3. A trend pages only as far ahead as half the time it was watched, and is a notice up to twice that. One that ends beyond the planned
   steps is silent; so is one that was watched for less than an epoch and would be freed at its end.
4. Some deaths are known without a trend: optimizer state that is not there yet, an evaluation that was tried and does not fit beside
   what is held by now, the largest input that is still to come.
5. Where nothing grows, heavy-tailed sizes of batches may still end it: a probability and at most a notice (`tail`).
6. Before a leak pages, `gc_probe`, where given, has garbage collected: what falls then was no leak (`garbage`).
7. A level once reached is kept while its reason stands with double tolerance, and what is told changes only when it means it (`steady`).
"""

from __future__ import annotations

from math import inf

from memagent.forecast.gc_check import GarbageCheck, GcProbe
from memagent.forecast.hysteresis import ForecastHysteresis
from memagent.forecast.projection import LAST_STEPS, NOTICE_AHEAD, PAGE_AHEAD, Projection, reach
from memagent.forecast.running_statistics import StepClock
from memagent.forecast.signals import Signals, reading
from memagent.forecast.trend import Trend
from memagent.forecast.types import PAGING_LEVELS, Cause, Forecast, Level

CRITICAL_S = 120.0
CRITICAL_STEPS = 20
"""Critical where the steps have no times."""
SETTLING_STEPS = 5
"""First steps of a run (lazy allocation, autotuning) that are no part of any trend."""
LARGEST_COMES = 0.88
"""How often the largest input that may come does come, or a lesser one that is too large."""
NEARLY_SURE = 0.9
LIKELY, UNLIKELY, QUIET = 0.7, 0.3, 0.01
"""A tail's chance from which it is a notice; the most that is said of growth that is no notice; what is said of no growth."""
MEANT = 3
"""So much less far growth is believed that may be meant to be."""
UNEXPECTED, OUTGROWN = 1.5, 1.02
"""So much further a leak is believed that has grown past what the estimator expects, and how far past: its usual error."""
FIRST_EPOCH = 0.2
"""Share of the plan that a first epoch of unknown length seldom exceeds."""
EVAL_COMES = 0.9
"""How often an evaluation that was tried and will not fit does come."""
HORIZON_STEPS = 1000
"""A run of unknown length is taken to go on for as long as it has, and for this many steps at least."""
FREED_WITH_EPOCH = ("leak", "input", "host_memory")


class Forecaster:
    """Feed `update` once a sample, in order; it returns what is known then. All sizes are bytes, times seconds.

    limit_bytes: what the process can use of the device. host_limit_bytes: the same of the host, for `host_used_bytes`.
    total_steps: planned optimizer steps. optimizer_state_bytes: what the optimizer will allocate in its first step.
    max_input_size: the largest input that can come. epoch_steps: steps an epoch. predicted_peak_bytes: the estimator's answer.
    gc_probe: collects garbage and returns the allocated bytes after it, or None where the floor of later samples is the answer; when
    and how often it is called is said in `garbage`. Raises ValueError for a limit that is not positive.
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
        gc_probe: GcProbe | None = None,
    ) -> None:
        if limit_bytes <= 0 or (host_limit_bytes is not None and host_limit_bytes <= 0):
            raise ValueError(
                f"a limit must be more than zero bytes, not {limit_bytes} and {host_limit_bytes}"
            )
        self.limit_bytes, self.host_limit_bytes, self.total_steps = (
            limit_bytes,
            host_limit_bytes,
            total_steps,
        )
        self._state_bytes, self._max_input = optimizer_state_bytes, max_input_size
        self._epoch_steps, self._predicted_peak = epoch_steps, predicted_peak_bytes
        self._eval_bytes: int | None = None
        self._eval_told: int | None = None
        self._gc_probe = gc_probe
        self._begin()

    def _begin(self) -> None:
        self._step: int | None = None
        self._first_step = 0
        self._clock = StepClock()
        self._signals = Signals(self.limit_bytes, self.host_limit_bytes)
        self._forecast = Forecast(step=0)
        self._steady = ForecastHysteresis()
        self._garbage = GarbageCheck(self._gc_probe)

    def learn(
        self,
        *,
        optimizer_state_bytes: int | None = None,
        max_input_size: float | None = None,
        epoch_steps: int | None = None,
        predicted_peak_bytes: int | None = None,
        eval_bytes: int | None = None,
    ) -> None:
        """Take in what became known since; None leaves things as they are. `eval_bytes`: how far an evaluation or a checkpoint goes above
        what is held after a step, where that was tried before the first one came."""
        self._state_bytes = (
            optimizer_state_bytes if optimizer_state_bytes is not None else self._state_bytes
        )
        self._max_input = max_input_size if max_input_size is not None else self._max_input
        self._epoch_steps = epoch_steps if epoch_steps is not None else self._epoch_steps
        self._predicted_peak = (
            predicted_peak_bytes if predicted_peak_bytes is not None else self._predicted_peak
        )
        if eval_bytes not in (
            None,
            self._eval_told,
        ):  # what the samples have disproved stays so, however often it is said
            self._eval_bytes = self._eval_told = eval_bytes

    @property
    def newest(self) -> Forecast:
        """What the last update returned."""
        return self._forecast

    def update(
        self,
        step: int,
        *,
        time_s: float | None = None,
        allocated_bytes: int | None = None,
        peak_allocated_bytes: int | None = None,
        reserved_bytes: int | None = None,
        inactive_split_bytes: int | None = None,
        alloc_retries: int
        | None = None,  # predict nothing alone (torchtitan 2389 survives six of them)
        device_used_bytes: int | None = None,
        host_used_bytes: int | None = None,
        input_size: float | None = None,
        phase: str = "train",
        optimizer_steps: int | None = None,
    ) -> Forecast:
        """Take the readings at the end of `step`; None is a reading that was not taken. A step that goes back begins anew."""
        if self._step is not None and step <= self._step:
            self._begin()
        if self._step is None or optimizer_steps == 0:
            self._first_step = step  # before the first optimizer step nothing has settled
        self._step = step
        self._clock.tick(step, time_s)
        device_used = reading(device_used_bytes)
        allocated = reading(allocated_bytes)
        self._signals.take(
            step,
            settled=step - self._first_step >= SETTLING_STEPS,
            floor=allocated if allocated is not None else device_used,
            peak=reading(peak_allocated_bytes),
            reserved=reading(reserved_bytes),
            split=reading(inactive_split_bytes),
            device_used=device_used,
            host=reading(host_used_bytes),
            input_size=reading(input_size) if phase == "train" else None,
            training=phase == "train",
        )
        if phase not in ("train", "preflight") and self._eval_does_not_fit(optimizer_steps):
            self._eval_bytes = None  # it came and went: it takes less than was thought
        fresh = self._known_death(step, optimizer_steps) or self._by_trends(step)
        self._forecast = self._steady.settle(fresh, self._clock.seconds(1))
        return self._forecast

    # -- deaths that need no trend -------------------------------------------------------------------------------------

    def _known_death(self, step: int, optimizer_steps: int | None) -> Forecast | None:
        signals = self._signals
        if (
            self._state_bytes
            and optimizer_steps == 0
            and signals.need + self._state_bytes > self.limit_bytes
        ):
            return self._answer(step, "critical", "optimizer_state", 0.97, steps_left=(1, 1, 1))
        if self._eval_does_not_fit(optimizer_steps):
            return self._answer(step, "warning", "eval", EVAL_COMES)
        largest = signals.excess.at_input(self._max_input)
        if (
            largest is None
            or signals.need - signals.excess.recent + largest <= self.limit_bytes * 1.01
        ):
            return None
        chance = self._chance_of_tail(step)
        if chance == 0.0:
            return self._answer(step, "warning", "input", LARGEST_COMES)
        # the largest of heavy-tailed sizes may never come: what counts is the chance of one that is too large
        return self._answer(step, "warning", "tail", chance) if chance >= NEARLY_SURE else None

    def _eval_does_not_fit(self, optimizer_steps: int | None) -> bool:
        """Whether the evaluation that was tried at the start would not fit beside what is held by now."""
        if self._eval_bytes is None:
            return False
        signals = self._signals
        coming = (self._state_bytes or 0) if optimizer_steps == 0 else 0
        return (
            signals.floor + signals.split + signals.others + coming + self._eval_bytes
            > self.limit_bytes
        )

    def _by_tail(self, step: int) -> Forecast:
        """No trend: the chance of one batch that is too large. It never pages, for half of such runs survive."""
        chance = self._chance_of_tail(step)
        if chance >= LIKELY:
            return self._answer(step, "notice", "tail", chance)
        return self._answer(step, "ok", None, max(chance, QUIET))

    def _chance_of_tail(self, step: int) -> float:
        """That one of the steps to come takes more than there is room for; as many as were seen where no plan is known."""
        steps = (
            self.total_steps - step
            if self.total_steps
            else max(HORIZON_STEPS, step - self._first_step)
        )
        return self._signals.chance_of_excess(self.limit_bytes, steps, self._max_input)

    def _answer(
        self,
        step: int,
        level: Level,
        cause: Cause | None,
        probability: float,
        *,
        steps_left: tuple[float, float, float] | None = None,
        grown_by: Projection | None = None,
    ) -> Forecast:
        """`steps_left`: expected, at least, at most."""
        host = grown_by is not None and grown_by.cause == "host_memory"
        left, low, high = (
            (step + steps for steps in steps_left) if steps_left else (None, None, None)
        )
        return Forecast(
            step=step,
            level=level,
            oom_probability=probability,
            cause=cause,
            eta_step=left,
            eta_low=low,
            eta_high=high,
            eta_s=self._clock.seconds(steps_left[0]) if steps_left else None,
            used_bytes=_whole(self._signals.host if host else self._signals.used),
            limit_bytes=grown_by.limit_bytes if grown_by else self.limit_bytes,
            growth_bytes_per_step=grown_by.slope if grown_by else None,
            growing_since_step=int(grown_by.since_step) if grown_by else None,
        )

    # -- trends --------------------------------------------------------------------------------------------------------

    def _by_trends(self, step: int) -> Forecast:
        nearest = self._nearest(step)
        if nearest is None:
            return self._by_tail(step)
        level = self._level(step, nearest)
        if level in PAGING_LEVELS and nearest.cause == "leak":
            level = self._unless_garbage(step, nearest, level)
        planned_left = max(0, self.total_steps - step) if self.total_steps else inf
        probability = nearest.chance_within(planned_left)
        if level == "ok":
            return self._answer(step, "ok", None, min(probability, UNLIKELY), grown_by=nearest)
        bounds = (nearest.steps_left, nearest.steps_left_low, nearest.steps_left_high)
        return self._answer(
            step, level, nearest.cause, probability, steps_left=bounds, grown_by=nearest
        )

    def _nearest(self, step: int) -> Projection | None:
        """The memory that runs out first, device's or host's."""
        signals = self._signals
        if not signals.trends:
            return None
        inputs_end = self._inputs_end(signals)
        device: dict[Cause, Trend] = {
            cause: trend
            for cause, trend in signals.trends.items()
            if cause != "host_memory" and not (cause == "input" and inputs_end)
        }
        found = [reach(device, self.limit_bytes - signals.expected_need(step), self.limit_bytes)]
        host = signals.trends.get("host_memory")
        if host is not None and self.host_limit_bytes:
            found.append(
                reach(
                    {"host_memory": host},
                    self.host_limit_bytes - signals.expected_host(step),
                    self.host_limit_bytes,
                )
            )
        return min((one for one in found if one), key=lambda one: one.steps_left, default=None)

    def _inputs_end(self, signals: Signals) -> bool:
        """Whether what inputs make grow is known to end: at the largest input, and below the limit where the floor keeps it."""
        kept = signals.kept_to_come(self._max_input)
        if kept is not None:
            return signals.need + kept <= self.limit_bytes
        return signals.excess.at_input(self._max_input) is not None

    def _level(self, step: int, nearest: Projection) -> Level:
        """How bad that is."""
        paged = self._forecast.level in PAGING_LEVELS
        planned_left = max(0, self.total_steps - step) if self.total_steps else inf
        if nearest.steps_left > planned_left * (1.1 if paged else 1.0):
            return "ok"
        page = nearest.page_ahead * (2.0 if paged else 1.0)
        if nearest.steps_left > LAST_STEPS and self._may_be_meant(step, nearest):
            page /= MEANT
        elif self._is_unexpected(nearest):
            page *= UNEXPECTED
        if nearest.ahead <= page and not self._ends_with_epoch(step, nearest):
            return "critical" if self._is_close(nearest) else "warning"
        return "notice" if nearest.ahead <= NOTICE_AHEAD else "ok"

    def _is_close(self, nearest: Projection) -> bool:
        kept = 1.2 if self._forecast.level == "critical" else 1.0
        seconds = self._clock.seconds(nearest.steps_left)
        if seconds is None:
            return nearest.steps_left <= CRITICAL_STEPS * kept
        return seconds <= CRITICAL_S * kept

    def _ends_with_epoch(self, step: int, nearest: Projection) -> bool:
        """Growth watched for less than an epoch may be freed at its end, if it gets there."""
        epoch = self._epoch_steps
        if (
            not epoch
            or nearest.cause not in FREED_WITH_EPOCH
            or nearest.watched_steps > 1.2 * epoch
        ):
            return False
        return 0.8 * nearest.steps_left > epoch - step % epoch

    def _may_be_meant(self, step: int, nearest: Projection) -> bool:
        """Growth that needs more evidence: up to what the estimator expects, or in what may be the first epoch of a long plan."""
        if (
            self._predicted_peak
            and self._signals.floor + self._signals.excess.recent < 0.98 * self._predicted_peak
        ):
            return True
        if self._epoch_steps or not self.total_steps or nearest.cause not in FREED_WITH_EPOCH:
            return False  # an accumulator looks like a leak until its first epoch ends
        return step + nearest.steps_left < FIRST_EPOCH * self.total_steps

    def _is_unexpected(self, nearest: Projection) -> bool:
        """A leak that has outgrown the estimator's prediction: nothing that the training needs explains it. A run that was above it all
        along says that the prediction is wrong, and one by jumps or dying out may be of compiled graphs, which nobody predicts."""
        if not self._predicted_peak or nearest.cause != "leak" or nearest.page_ahead < PAGE_AHEAD:
            return False
        observed = self._signals.floor + self._signals.excess.recent
        return (
            observed - nearest.slope * nearest.watched_steps
            < self._predicted_peak
            < observed / OUTGROWN
        )

    def _unless_garbage(self, step: int, nearest: Projection, level: Level) -> Level:
        """A leak's page waits for a collection of garbage, and goes where one shows that there is no leak (`garbage`)."""
        verdict = self._garbage.judge(
            step, floor=self._signals.floor, grown=nearest.slope * nearest.watched_steps, watched=nearest.watched_steps,
            left=nearest.steps_left, step_s=self._clock.seconds(1),
        )  # fmt: skip
        if verdict == "garbage":
            self._signals.forget("leak")
            self._steady.forget()
            return "ok"
        return "notice" if verdict == "asked" else level


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
