"""The readings of one device, told apart into what each grows for, and each watched as a series of its own.

floor     allocated after the step: what stays, so what leaks                         -> leak
excess    how far the step peaks above its floor: activations                         -> input
split     free pieces of split blocks, which nobody else can use                      -> fragmentation
others    used on the device and not reserved by this process                         -> other_processes
host      memory of the process tree, where it has a limit of its own                 -> host_memory

The step that dies is that whose need = floor + excess + split + others reaches the limit.

Where there is no caching allocator, as on a CPU, the floor keeps what the largest input needed: growth that follows it is input's (`kept`).
"""

from __future__ import annotations

from math import inf

from memagent.forecast.bucketed_series import BucketedSeries
from memagent.forecast.input_high_water import InputHighWaterModel
from memagent.forecast.running_statistics import Excess
from memagent.forecast.tail import Tail
from memagent.forecast.trend import Trend, find_trend
from memagent.forecast.types import LEAK_CAUSES, Cause

TRIFLE = 0.003
"""Growth below this share of the limit is not looked at."""
GRAIN_BYTES = 4 * 2**20
"""... nor growth below the portions in which malloc's arenas and caching allocators take memory and give it back."""
LOOK_EVERY = 3
"""Buckets between two fits."""


def reading(value: float | None) -> float | None:
    """The value, or None where it is no size: absent, negative, infinite or not a number."""
    return value if value is not None and 0 <= value < inf else None


class Signals:
    """`take` the readings of a step; then `trends` holds what grows. Trails begin when `settled` is given as true."""

    def __init__(self, limit_bytes: int, host_limit_bytes: int | None) -> None:
        self._trifle: dict[Cause, float] = dict.fromkeys(
            ("leak", "fragmentation", "other_processes", "input"),
            max(TRIFLE * limit_bytes, GRAIN_BYTES),
        )
        if host_limit_bytes:
            self._trifle["host_memory"] = max(TRIFLE * host_limit_bytes, GRAIN_BYTES)
        self._trails: dict[Cause, BucketedSeries] = {
            cause: BucketedSeries(max if cause == "input" else min) for cause in self._trifle
        }
        self.trends: dict[Cause, Trend] = {}
        self.excess = Excess()
        self._tail = Tail()
        self._kept = InputHighWaterModel()
        self.used: float | None = None
        """Most that was used within the newest step."""
        self.floor = self.split = self.others = self.host = 0.0
        self._new_buckets = 0

    @property
    def need(self) -> float:
        """Bytes that a step like the recent ones takes at its peak."""
        return self.floor + self.excess.recent + self.split + self.others

    def expected_need(self, step: int) -> float:
        """`need` without the noise of the newest reading: by the lines of what grows, and what stands out above them."""
        more = 0.0
        watched: tuple[tuple[Cause, float], ...] = (
            ("leak", self.floor), ("fragmentation", self.split), ("other_processes", self.others),
        )  # fmt: skip
        for cause, now in watched:
            trend = self.trends.get(cause)
            if trend is not None:
                more += max(0.0, trend.level_at(step) - now)
        return self.need + more

    def expected_host(self, step: int) -> float:
        trend = self.trends.get("host_memory")
        return self.host if trend is None else max(self.host, trend.level_at(step))

    def take(
        self,
        step: int,
        *,
        settled: bool,
        floor: float | None,
        peak: float | None,
        reserved: float | None,
        split: float | None,
        device_used: float | None,
        host: float | None,
        input_size: float | None,
        training: bool,
    ) -> None:
        if floor is not None:
            excess = max(0.0, (peak or floor) - floor)
            self.floor, self.used = floor, floor + excess
            self.excess.add(excess, input_size)
            if training:
                self._tail.add(excess)
            if input_size is not None and reserved is None:
                self._kept.see(input_size)
            self._watch("leak", step, floor, settled)
            if excess:
                self._watch("input", step, excess, settled)
        if split is not None:
            self.split = split
            self._watch("fragmentation", step, split, settled)
        if device_used is not None and reserved is not None:
            self.others = max(0.0, device_used - max(reserved, floor or 0.0))
            self._watch("other_processes", step, self.others, settled)
        if host is not None and "host_memory" in self._trails:
            self.host = host
            self._watch("host_memory", step, host, settled)
        if self._new_buckets >= LOOK_EVERY:
            self._look()

    def chance_of_excess(
        self, limit_bytes: int, steps: float, largest_input: float | None
    ) -> float:
        """Probability that one of the next `steps` peaks further above its floor than there is room."""
        room = limit_bytes - (self.floor + self.split + self.others)
        largest = self.excess.at_input(largest_input)
        return 0.0 if largest is not None and largest <= room else self._tail.chance(room, steps)

    def kept_to_come(self, largest_input: float | None) -> float | None:
        """Bytes that the floor will still grow by until the largest input has come, or None where inputs do not explain its growth."""
        return self._kept.to_come(largest_input)

    def forget(self, cause: Cause) -> None:
        """Watch a series anew from here."""
        self._trails[cause].clear()
        self.trends.pop(cause, None)
        if cause == "leak":
            self._kept.clear()

    def _watch(self, cause: Cause, step: int, value: float, settled: bool) -> None:
        if not settled:
            return
        trail = self._trails[cause]
        if cause == "leak" and self._kept.largest:
            self._kept.add(step)
        if trail.add(step, value, self._trifle[cause]) and cause in LEAK_CAUSES:
            self._new_buckets += 1
        if trail.fell_at == step:
            self.trends.pop(
                cause, None
            )  # its growth is gone, and with it what was concluded from it

    def _look(self) -> None:
        """Fit the trends anew."""
        self._new_buckets = 0
        found = {cause: self._trend(cause) for cause in self._trails}
        self.trends = {cause: trend for cause, trend in found.items() if trend is not None}
        self._tell_kept_from_leaked()

    def _trend(self, cause: Cause, start: int = 0) -> Trend | None:
        """Of one series from the bucket `start` on."""
        trail = self._trails[cause]
        steps, values, tops = (
            each[start:] if start else each for each in (trail.steps, trail.values, trail.tops)
        )
        return find_trend(
            steps, values, self._trifle[cause], tops=tops, repeats_from=trail.repeats_from()
        )

    def _tell_kept_from_leaked(self) -> None:
        """Growth of the floor that the largest input explains is no leak. Of it and the step peaks' own growth the steeper counts."""
        grown = self.trends.get("leak")
        if (
            grown is None
            or not self._kept.largest
            or not self._kept.explains(self._trails["leak"], grown.since_step)
        ):
            return
        del self.trends["leak"]
        stayed_since = self._kept.stayed_since
        if stayed_since is not None:
            leak = self._trend("leak", stayed_since)
            if leak is not None:
                self.trends["leak"] = leak
            return
        peaks = self.trends.get("input")
        self.trends["input"] = grown if peaks is None or peaks.slope < grown.slope else peaks
