"""The result of every estimate: one type, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem, PredictionMessage

Interval = tuple[int, int]
_Z_95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Estimate:
    """The needs of one step, in bytes.

    - components: by the names of `memagent.wire.fields.COMPONENTS`, as a run's readings define
      them. Gradients are those that the optimizer's step reads, and the peak may hold fewer, so
      their sum may exceed the peak.
    - peak_allocated_bytes: what tensors take at once. peak_device_bytes: what the GPU shows, with
      the context and what the allocator cannot reuse.
    - phases: peaks of forward, backward and the optimizer's step. The peak is their maximum, never
      their sum.
    - terms: smaller parts by name (gathered layers, buckets, casts, cuBLAS's workspace).
    - intervals: (low, high) of each known level: "allocated", "reserved", "device". Nine peaks of
      ten lie within, one of twenty below and one above.
    - assumptions: what was assumed about the training.
    - fits_by_replay: the simulated allocator's result; `gives_back`: it fits only because the
      allocator returns cached segments to the driver.
    """

    method: Literal["formula", "trace"]
    peak_allocated_bytes: int
    components: dict[str, int]
    peak_reserved_bytes: int | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    limit_bytes: int | None = None
    assumptions: dict[str, Any] = field(default_factory=dict)
    advice: tuple[AdviceItem, ...] = ()
    timeline: tuple[tuple[str, int], ...] = ()
    peak_device_bytes: int | None = None
    phases: dict[str, int] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    fits_by_replay: bool | None = None
    gives_back: bool = False

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that the limit applies to: the device's if they are known."""
        if self.peak_device_bytes is None:
            return self.peak_allocated_bytes
        return self.peak_device_bytes

    @property
    def margin_bytes(self) -> int | None:
        """Return the room below the limit: negative if it won't fit, None without a limit."""
        return None if self.limit_bytes is None else self.limit_bytes - self.needed_bytes

    @property
    def fits(self) -> bool | None:
        """Return True if the peak is within the limit, or the simulated allocator succeeds in it.

        None without a limit.
        """
        if self.fits_by_replay is not None:
            return self.fits_by_replay
        return None if self.limit_bytes is None else self.needed_bytes <= self.limit_bytes

    @property
    def fit_probability(self) -> float | None:
        """Return the probability that the step succeeds; None without a limit or an interval.

        The estimate counts as the median and its interval as the 5th and 95th percentile, with half
        a normal distribution on either side. If the simulated allocator succeeds by releasing its
        cache, only tensors and the context count.
        """
        bounds = self._limited_bounds()
        if self.limit_bytes is None or bounds is None:
            return None
        low, middle, high = bounds
        room = self.limit_bytes - middle
        width = high - middle if room >= 0 else middle - low
        if width <= 0:
            return float(room >= 0)
        return NormalDist().cdf(_Z_95 * room / width)

    @property
    def surely_too_large(self) -> bool:
        """Return True if even the lower bound of tensors and context exceeds the limit."""
        if self.limit_bytes is None or self.fits is not False:
            return False
        return self._bounds_without_cache()[0] > self.limit_bytes

    def _limited_bounds(self) -> tuple[int, int, int] | None:
        """Return low, middle and high of the bytes that the limit applies to."""
        if self.gives_back:
            return self._bounds_without_cache() if "allocated" in self.intervals else None
        level = "allocated" if self.peak_device_bytes is None else "device"
        if level not in self.intervals:
            return None
        low, high = self.intervals[level]
        return low, self.needed_bytes, high

    def _bounds_without_cache(self) -> tuple[int, int, int]:
        """Return low, middle and high of tensors and context, without the allocator's cache."""
        # on a host the tensors' level includes the process's own memory
        context = 0 if self.peak_device_bytes is None else self.components.get("context", 0)
        peak = self.peak_allocated_bytes
        low, high = self.intervals.get("allocated", (peak, peak))
        return low + context, peak + context, high + context

    def verdict(self) -> str:
        """Return one line for people."""
        needed = format_bytes(self.needed_bytes)
        if self.limit_bytes is None:
            return f"needs {needed}"
        verdict = "fits" if self.fits else "will not fit"
        limit = format_bytes(self.limit_bytes)
        return f"{verdict}: needs {needed} of {limit} (predicted by {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; `timeline` has the peak of each phase of each traced step."""
        return {
            "method": self.method,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_device_bytes": self.peak_device_bytes,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()},
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "margin_bytes": self.margin_bytes,
            "fit_probability": self.fit_probability,
            "components": dict(self.components),
            "phases": dict(self.phases),
            "timeline": [{"phase": phase, "peak_bytes": size} for phase, size in self.timeline],
            "terms": dict(self.terms),
            "assumptions": dict(self.assumptions),
            "advice": [
                {"change": a.change, "saving_bytes": a.saving_bytes, "cost": a.cost, "code": a.code}
                for a in self.advice
            ],
        }

    def to_message(self, *, rank: int, device: str) -> PredictionMessage:
        """Return the prediction as the wire's message."""
        return PredictionMessage(
            method=self.method,
            rank=rank,
            device=device,
            peak_allocated_bytes=self.peak_allocated_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            peak_device_bytes=self.peak_device_bytes,
            intervals=dict(self.intervals),
            limit_bytes=self.limit_bytes,
            components=dict(self.components),
            phases=dict(self.phases),
            terms=dict(self.terms),
            assumptions=dict(self.assumptions),
            advice=list(self.advice),
        )
