"""Signals: the readings of one device, split by what grows, each as a series with its trend.

floor     allocated after the step: what stays, so what leaks                 -> leak
excess    how far the step peaks above its floor: activations                 -> input
unusable  reserved, but of no use at the peak (`overhead`)                     -> fragmentation
others    used on the device and not reserved by this process (`overhead`)    -> other_processes
host      memory of the process tree, if it has its own limit                  -> host_memory

A step runs out of memory if its need = floor + excess + unusable + others reaches the limit.

Without a caching allocator, as on a CPU, the floor keeps what the largest input needed. Growth that
follows the largest input counts as `input` (`input_high_water`).
"""

from __future__ import annotations

from math import inf

from memagent.forecast.bucketed_series import TOOTH_END_FALL_RATIO, BucketedSeries
from memagent.forecast.hysteresis import GrowthStart
from memagent.forecast.input_high_water import InputHighWaterModel
from memagent.forecast.overhead import OtherProcesses, UnusableReserve
from memagent.forecast.running_statistics import ExcessStatistics
from memagent.forecast.tail import TailRisk
from memagent.forecast.trend import find_trend
from memagent.forecast.types import LEAK_CAUSES, Cause, Trend

MIN_GROWTH_RATIO = 0.003
"""Share of the limit below which growth doesn't matter."""
MIN_GROWTH_BYTES = 4 * 2**20
"""Smaller growth is that of the portions in which malloc and caching allocators take memory."""
MAX_NOISE_RATIO = 1 / 8
"""Share of the smallest growth that matters by which readings may differ and count as equal."""
FIT_EVERY_BUCKETS = 3
"""Buckets between two fits. Each counts if they hold few readings, those of a whole device."""
REFIT_SHARE = 20
"""Once something grows, it's fitted again when it has a twentieth more buckets."""


def valid_reading(value: float | None) -> float | None:
    """Return the value, or None if it isn't a size: absent, negative, infinite or not a number."""
    return value if value is not None and 0 <= value < inf else None


class Signals:
    """Call `update` for each step; `trends` then holds what grows."""

    def __init__(self, limit_bytes: int, host_limit_bytes: int | None, device_bytes: float) -> None:
        self._min_rise: dict[Cause, float] = {}
        self._device_bytes = device_bytes
        self._limit_bytes = limit_bytes
        self._unusable = UnusableReserve()
        self._others = OtherProcesses()
        self._others_bytes = 0.0
        """Bytes of this process's limit that others use: they use the rest of the device first."""
        self.set_limits(limit_bytes, host_limit_bytes)
        self._series: dict[Cause, BucketedSeries] = {
            cause: BucketedSeries(max if cause == "input" else min) for cause in self._min_rise
        }
        self.trends: dict[Cause, Trend] = {}
        self._starts: dict[Cause, GrowthStart] = {}
        """Start of the growth that each cause's newest trend shows, even if it has ended."""
        self.revision = 0
        """Number of changes of `trends`."""
        self.has_stopped = False
        """True if the newest step shows that a trend has stopped."""
        self.excess = ExcessStatistics()
        self._tail = TailRisk()
        self._input_high_water = InputHighWaterModel()
        self.used: float | None = None
        """Maximum within the newest step."""
        self.floor = self.host = 0.0
        self._is_floor_of_inputs = False
        """True if the growth by inputs is that of the floor."""
        self.is_device = False
        """True if the floor is what the whole device uses, since nothing else is read."""
        self._new_buckets = 0
        self._next_fit = FIT_EVERY_BUCKETS
        self._added: list[BucketedSeries] = []  # to by the newest step

    def set_limits(self, limit_bytes: int, host_limit_bytes: int | None) -> None:
        """Expect growth of a size that matters for these limits."""
        self._limit_bytes = limit_bytes
        self._beyond_limit = max(0.0, self._device_bytes - limit_bytes)
        self._others_bytes = max(0.0, self._others.bytes - self._beyond_limit)
        device_causes: tuple[Cause, ...] = ("leak", "fragmentation", "other_processes", "input")
        device_rise = max(MIN_GROWTH_RATIO * limit_bytes, MIN_GROWTH_BYTES)
        self._min_rise.update(dict.fromkeys(device_causes, device_rise))
        if host_limit_bytes:
            host_rise = max(MIN_GROWTH_RATIO * host_limit_bytes, MIN_GROWTH_BYTES)
            self._min_rise["host_memory"] = host_rise

    @property
    def overhead(self) -> float:
        """Return what is in use at the peak and of no use to this process."""
        unusable = self._unusable.expected
        if "fragmentation" in self.trends:
            unusable = max(unusable, self._unusable.free_pieces)
        return unusable + self._others_bytes

    @property
    def need(self) -> float:
        """Return the bytes that a step like the recent ones takes at its peak."""
        return self.floor + self.excess.recent + self.overhead

    def need_with(self, excess: float) -> float:
        """Return `need` of a step that peaks so far above its floor.

        It takes pieces that the newest step can't use before it takes more of the device.
        """
        more = self.floor + excess - (self.used or 0.0)
        unusable = self.overhead - self._others_bytes - max(0.0, more)
        return self.floor + excess + self._others_bytes + max(0.0, unusable)

    @property
    def room(self) -> int:
        """Return how many steps like the newest complete a bucket: none but the last is fitted."""
        return min((one.room for one in self._added), default=1)

    @property
    def tolerance_bytes(self) -> float:
        """Return by how much readings may differ and count as equal."""
        return MAX_NOISE_RATIO * min(self._min_rise.values())

    def expected_need(self, step: int) -> float:
        """Return `need` without the noise of the newest reading, by the trends' levels."""
        more = 0.0
        for cause, trend in self.trends.items():
            if cause not in ("input", "host_memory"):
                value = self._value(cause)
                more += trend.level_above(value, step) - value
        return self.need + more

    def growing_since(self, cause: Cause) -> int:
        """Return the step at which the growth of `cause` began."""
        return int(self._starts[cause].step)

    def grown_bytes(self, cause: Cause) -> int:
        """Return by how much the memory of `cause` has grown since its growth began."""
        return max(0, round(self._value(cause) - self._starts[cause].value))

    def pauses(self, cause: Cause, step: int) -> bool:
        """Return True if the growth of `cause` pauses for longer than it ever did."""
        trend = self.trends[cause]
        return step > trend.pauses_after and self._value(cause) <= trend.renewed_above

    def need_at_fit(self, cause: Cause) -> float:
        """Return `need` with the value of the trend of `cause` when it was fitted."""
        return self.need - self._value(cause) + self.trends[cause].value

    def _value(self, cause: Cause) -> float:
        """Return the newest reading of what grows."""
        if cause == "leak" or (cause == "input" and self._is_floor_of_inputs):
            return self.floor
        if cause == "fragmentation":
            return self._unusable.free_pieces
        if cause == "other_processes":
            return self._others_bytes
        return self.host if cause == "host_memory" else self.excess.recent

    @property
    def need_bounds(self) -> tuple[float, float]:
        """Return how far `need` may be lower, and higher, by what is unusable."""
        unusable = self._unusable
        return unusable.expected - unusable.at_least, unusable.at_most - unusable.expected

    def most_headroom(self, limit_bytes: float) -> float:
        """Return what may be left to the limit at most."""
        more, _ = self.need_bounds
        return limit_bytes - self.need + more

    def expected_host(self, step: int) -> float:
        trend = self.trends.get("host_memory")
        return self.host if trend is None else trend.level_above(self.host, step)

    def update(
        self,
        step: int,
        *,
        is_settled: bool,
        floor: float | None,
        peak: float | None,
        reserved: float | None,
        split: float | None,
        retries: float | None,
        device_used: float | None,
        host: float | None,
        input_size: float | None,
        is_training: bool,
        count: int = 1,
    ) -> None:
        """Add the readings of a step. Series begin when the run `is_settled`.

        count: steps with these readings, the last of them `step`; at most `room`.
        """
        self.has_stopped = False
        self._added.clear()
        if floor is not None:
            # an allocator's floor is read after the step, when its activations are gone
            self.is_device = device_used is not None and reserved is None and peak is None
            excess = max(0.0, (peak or floor) - floor)
            self.floor = floor
            self.used = floor + excess
            self.excess.add(excess, input_size, count)
            if is_training:
                self._tail.add(excess, count)
            if input_size is not None and split is None:  # no caching allocator
                self._input_high_water.observe(input_size)
            self._add("leak", step, floor, is_settled, count)
            if excess:
                self._add("input", step, excess, is_settled, count)
        if floor is not None and reserved is not None:
            self._update_overhead(reserved, split, retries, device_used)
            if split is not None:
                self._add("fragmentation", step, self._unusable.free_pieces, is_settled, count)
            if device_used is not None:
                self._add("other_processes", step, self._others_bytes, is_settled, count)
        if host is not None and "host_memory" in self._series:
            self.host = host
            self._add("host_memory", step, host, is_settled, count)
        if self._new_buckets >= (1 if self.is_device else self._next_fit):
            self._fit_trends()

    def excess_probability(
        self, limit_bytes: int, steps: float, largest_input: float | None
    ) -> float:
        """Return the probability that one of the next `steps` peaks above the limit."""
        room = limit_bytes - (self.floor + self.overhead)
        largest = self.excess.at_input(largest_input)
        if largest is not None and largest <= room:
            return 0.0
        return self._tail.probability(room, steps)

    def future_input_growth(self, largest_input: float | None) -> float | None:
        """Return how much the floor will grow until the largest input has come.

        None if inputs don't explain the floor's growth.
        """
        return self._input_high_water.future_growth(largest_input)

    def restart(self, cause: Cause) -> None:
        """Start a series again from here."""
        self._series[cause].clear()
        self._drop(cause)
        if cause == "leak":
            self._input_high_water.clear()

    def _update_overhead(
        self, reserved: float, split: float | None, retries: float | None, device_used: float | None
    ) -> None:
        if split is not None:
            self._unusable.update(
                floor=self.floor,
                peak=self.used or 0.0,
                reserved=reserved,
                split=split,
                retries=retries,
                limit_bytes=self._limit_bytes,
            )
        if device_used is not None:
            self._others.update(device_used, max(reserved, self.floor))
            self._others_bytes = max(0.0, self._others.bytes - self._beyond_limit)

    def _add(self, cause: Cause, step: int, value: float, is_settled: bool, count: int) -> None:
        if not is_settled:
            return
        series = self._series[cause]
        if cause == "leak" and self._input_high_water.largest:
            self._input_high_water.add(step, count)
        self._added.append(series)
        if count > 1:
            count = min(count, series.room)
        is_complete = series.add(step, value, self._min_rise[cause], count)
        if is_complete:
            self._new_buckets += cause in LEAK_CAUSES
            if cause in self.trends:
                self._drop_stopped(cause, step, series.values[-1])
        if series.fell_at == step and self._is_undone(cause, value):
            self._drop(cause)

    def _is_undone(self, cause: Cause, value: float) -> bool:
        """Return True if a fall to this value undoes half of the growth."""
        trend = self.trends.get(cause)
        return trend is not None and value < trend.value - TOOTH_END_FALL_RATIO * trend.rise

    def _drop_stopped(self, cause: Cause, step: int, value: float) -> None:
        trend = self.trends[cause]
        if step > trend.expires_step and value <= trend.renewed_above:
            self._drop(cause)
            self.has_stopped = True

    def _drop(self, cause: Cause) -> None:
        if self.trends.pop(cause, None) is not None:
            self.revision += 1

    def _fit_trends(self) -> None:
        self._new_buckets = 0
        self.revision += 1
        fits = {cause: self._fit(cause) for cause in self._series}
        self.trends = {cause: trend for cause, trend in fits.items() if trend is not None}
        self._next_fit = FIT_EVERY_BUCKETS
        if self.trends:
            buckets = max(len(self._series[cause].values) for cause in self.trends)
            self._next_fit = max(self._next_fit, buckets // REFIT_SHARE)
        was_floor = self._is_floor_of_inputs
        self._attribute_floor_to_inputs()
        if self._is_floor_of_inputs != was_floor:
            self._starts.pop("input", None)  # it is that of the other series
        for cause, trend in self.trends.items():
            self._starts[cause] = GrowthStart.of(trend, self._starts.get(cause))

    def _fit(self, cause: Cause, start: int = 0) -> Trend | None:
        """Return the trend of a series from the bucket `start` on."""
        series = self._series[cause]
        steps, values, tops = series.steps, series.values, series.tops
        is_device = self.is_device and cause == "leak"
        if start:
            steps, values, tops = steps[start:], values[start:], tops[start:]
        elif not is_device and series.rise < self._min_rise[cause]:
            return None  # the first test of `find_trend`: most series fail it
        return find_trend(
            steps,
            values,
            self._min_rise[cause],
            tops=tops,
            repeats_from=series.repeats_from(),
            is_device=is_device,
            lines=None if start else series.lines,
        )

    def _attribute_floor_to_inputs(self) -> None:
        """Count growth of the floor that the largest input explains as `input`, not as a leak.

        Of it and the growth of the steps' peaks, the steeper counts.
        """
        self._is_floor_of_inputs = False
        growth = self.trends.get("leak")
        model = self._input_high_water
        if growth is None or not model.largest:
            return
        if not model.explains(self._series["leak"], growth.since_step):
            return
        del self.trends["leak"]
        settled_since = model.settled_since
        if settled_since is not None:
            leak = self._fit("leak", settled_since)
            if leak is not None:
                self.trends["leak"] = leak
            return
        peaks = self.trends.get("input")
        if peaks is None or peaks.slope < growth.slope:
            self.trends["input"] = growth
            self._is_floor_of_inputs = True
