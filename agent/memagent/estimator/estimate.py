"""The answer of every estimator: one type, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem, PredictionMessage

Interval = tuple[int, int]
LEVELS = ("allocated", "reserved", "device")
"""What tensors take, what the caching allocator holds for them, and what the device shows: each at least the one before."""
_PERCENTILE_95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Estimate:
    """What one step needs. Sizes are bytes; `components` are named by `memagent.wire.fields.COMPONENTS` and mean what a run's readings of
    them do: gradients are those that the optimizer's step finds, which the peak need not hold, so their sum may be more than the peak.

    `peak_allocated_bytes` is what tensors take at once; `peak_device_bytes` what the GPU shows, with the context and what the allocator
    cannot reuse. `phases` are the peaks of forward, backward and the optimizer's step: the peak is their maximum, never their sum.
    `terms` name the smaller parts (gathered layers, buckets, casts, cuBLAS' workspace). `intervals` hold (low, high) for each of `LEVELS`
    that is known: nine peaks of ten lie within, one of twenty below and one above. `assumptions` says what was taken for granted.
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
    """Whether it fits only because the allocator gives cached segments back to the driver."""

    @property
    def needed_bytes(self) -> int:
        """What a limit is compared with: the device's bytes where they are known, else the tensors'."""
        return (
            self.peak_allocated_bytes if self.peak_device_bytes is None else self.peak_device_bytes
        )

    @property
    def margin_bytes(self) -> int | None:
        """Room below the limit; negative where it will not fit, None where no limit is known."""
        return None if self.limit_bytes is None else self.limit_bytes - self.needed_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak stays below the limit, or the simulated allocator gets through by giving back its cache; None where no limit is
        known."""
        if self.fits_by_replay is not None:
            return self.fits_by_replay
        return None if self.limit_bytes is None else self.needed_bytes <= self.limit_bytes

    @property
    def fit_probability(self) -> float | None:
        """How likely the step goes through, 0 to 1; None where no limit is known, or no interval.

        The estimate is taken for the median and its interval for the 5th and 95th percentile, with half a normal distribution on either
        side. Where the simulated allocator got through by giving back its cache, only tensors and the context count.
        """
        within = self._limiting()
        if self.limit_bytes is None or within is None:
            return None
        low, middle, high = within
        room = self.limit_bytes - middle
        spread = high - middle if room >= 0 else middle - low
        if spread <= 0:
            return float(room >= 0)
        return NormalDist().cdf(_PERCENTILE_95 * room / spread)

    @property
    def surely_too_large(self) -> bool:
        """Whether even the least that tensors and context may need is over the limit: no cache that is given back can help."""
        if self.limit_bytes is None or self.fits is not False:
            return False
        return self._bare()[0] > self.limit_bytes

    def _limiting(self) -> tuple[int, int, int] | None:
        """Low, middle and high of what the limit is compared with."""
        if self.gives_back:
            return self._bare() if "allocated" in self.intervals else None
        level = "allocated" if self.peak_device_bytes is None else "device"
        if level not in self.intervals:
            return None
        low, high = self.intervals[level]
        return low, self.needed_bytes, high

    def _bare(self) -> tuple[int, int, int]:
        """Low, middle and high of tensors and context, without the allocator's cache. On a host, tensors' level holds the context."""
        context = 0 if self.peak_device_bytes is None else self.components.get("context", 0)
        peak = self.peak_allocated_bytes
        low, high = self.intervals.get("allocated", (peak, peak))
        return low + context, peak + context, high + context

    def verdict(self) -> str:
        """One line for people."""
        if self.limit_bytes is None:
            return f"needs {format_bytes(self.needed_bytes)}"
        words = "fits" if self.fits else "will not fit"
        return f"{words}: needs {format_bytes(self.needed_bytes)} of {format_bytes(self.limit_bytes)} (predicted by {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready. `timeline` holds the peak of each phase of each traced step, in order."""
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
        """The same for the wire."""
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
