"""The result of every estimate, whatever the method: a peak and its interval at each level.

Nine peaks of ten lie within the interval: see `intervals`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

from memagent.estimator.intervals import Interval
from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem, PredictionMessage

FitVerdict = Literal["fits", "tight", "won't fit", "unknown"]
"""The same words at the command line, in JSON, in the HTTP API and on the page."""
_Z_95 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Estimate:
    """The needs of one step, in bytes.

    - method: a "bound" is the least that a step needs whose activations are not known: parameters,
      buffers, context, and the optimizer's state as far as it exists.
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
    - context_interval: (low, high) of a context that wasn't measured.
    - fits_by_replay: the simulated allocator's result; `gives_back`: it fits only because the
      allocator returns cached segments to the driver.
    """

    method: Literal["formula", "trace", "bound"]
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
    error_group: str = ""
    context_interval: Interval | None = None

    @property
    def is_bound(self) -> bool:
        """Return True if only the least that the step needs is known."""
        return self.method == "bound"

    @property
    def predicted_peak_bytes(self) -> int | None:
        """Return the expected peak of tensors; None for a bound."""
        return None if self.is_bound else self.peak_allocated_bytes

    @property
    def passing_bytes(self) -> int:
        """Return what comes and goes within the step: the peak less parameters and states."""
        names = ["parameters", "buffers", "optimizer_state"]
        if self.peak_device_bytes is None:  # a host's process counts among the tensors' bytes
            names.append("context")
        constant = sum(self.components.get(name, 0) for name in names)
        return max(0, self.peak_allocated_bytes - constant)

    @property
    def needed_bytes(self) -> int:
        """Return the bytes that the limit applies to: the device's if they are known."""
        if self.peak_device_bytes is None:
            return self.peak_allocated_bytes
        return self.peak_device_bytes

    @property
    def margin_bytes(self) -> int | None:
        """Return the room below the limit: negative if it won't fit.

        None without a limit, and for a bound.
        """
        if self.limit_bytes is None or self.is_bound:
            return None
        return self.limit_bytes - self.needed_bytes

    @property
    def outcome(self) -> FitVerdict | None:
        """Return "fits" if the whole interval is within the limit, "won't fit" if none of it is.

        "tight" is in between. A bound never fits: if it doesn't exceed the limit it is "unknown".
        None without a limit.
        """
        if self.limit_bytes is None:
            return None
        if self.is_bound:
            return "won't fit" if self.needed_bytes > self.limit_bytes else "unknown"
        low, _, high = self._limited_bounds() or (self.needed_bytes, 0, self.limit_bytes + 1)
        if self.surely_too_large or (low > self.limit_bytes and not self.fits_by_replay):
            return "won't fit"
        return "fits" if high <= self.limit_bytes and self.fits_by_replay is not False else "tight"

    @property
    def fits(self) -> bool | None:
        """Return True for "fits", False for "won't fit", and None in any other case."""
        return {"fits": True, "won't fit": False}.get(self.outcome or "")

    @property
    def sure_margin_bytes(self) -> int | None:
        """Return the room between the interval's upper end and the limit; None without a limit."""
        if self.limit_bytes is None:
            return None
        return self.limit_bytes - (self._limited_bounds() or (0, 0, self.needed_bytes))[2]

    def fits_with(self, saving_bytes: int) -> bool:
        """Return True if it fits once a change saves this much; the interval shrinks with it."""
        if self.limit_bytes is None or self.is_bound:
            return False
        then = self.needed_bytes - saving_bytes
        _, middle, high = self._limited_bounds() or (0, 1, 1)
        return then * high / max(1, middle) <= self.limit_bytes

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
        """Return True if even the lower ends of tensors and context exceed the limit."""
        if self.limit_bytes is None or self.fits_by_replay:
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
        peak = self.peak_allocated_bytes
        low, high = self.intervals.get("allocated", (peak, peak))
        if self.peak_device_bytes is None:
            return low, peak, high  # on a host these include the process's own memory
        context = self.components.get("context", 0)
        smallest, largest = self.context_interval or (context, context)
        return low + smallest, peak + context, high + largest

    def verdict(self) -> str:
        """Return one line for people; it begins with the outcome."""
        needed = format_bytes(self.needed_bytes)
        if self.is_bound:
            return self._bound_verdict(needed)
        if self.limit_bytes is None:
            return f"needs {needed}"
        bounds = self._limited_bounds()
        if self.outcome == "tight" and bounds is not None:
            needed = f"{format_bytes(bounds[0])} to {format_bytes(bounds[2])}"
        elif self.gives_back and bounds is not None:
            needed = f"{format_bytes(bounds[1])}, without the cache that torch releases,"
        limit = format_bytes(self.limit_bytes)
        return f"{self.outcome}: needs {needed} of {limit} (predicted by {self.method})"

    def _bound_verdict(self, needed: str) -> str:
        outcome = "" if self.outcome is None else f"{self.outcome}: "
        limit = "" if self.limit_bytes is None else f" of {format_bytes(self.limit_bytes)}"
        return f"{outcome}needs at least {needed}{limit}; its activations are not known"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; `timeline` has the peak of each phase of each traced step."""
        return {
            "method": self.method,
            "fallback": self.assumptions.get("trace"),
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_device_bytes": self.peak_device_bytes,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()},
            "limit_bytes": self.limit_bytes,
            "verdict": self.outcome,
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

    def to_message(self, *, rank: int, device: str) -> PredictionMessage | None:
        """Return the prediction as the wire's message; None for a bound, which predicts no peak."""
        if self.method == "bound":
            return None
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
