"""The answer of every estimator: one type, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem, PredictionMessage


@dataclass(frozen=True)
class Estimate:
    """What one step needs. Sizes are bytes; `components` are named by `memagent.wire.fields.COMPONENTS` and mean what a run's readings of
    them do: gradients are those that the optimizer's step finds, which the peak need not hold, so their sum may be more than the peak.

    `peak_allocated_bytes` is what tensors take at once; `peak_device_bytes` what the GPU shows, with the context and what the allocator
    cannot reuse. `phases` are the peaks of forward, backward and the optimizer's step: the peak is their maximum, never their sum.
    `terms` name the smaller parts (gathered layers, buckets, casts, cuBLAS' workspace). `low_bytes` and `high_bytes` bound the peak as
    far as the method knows its own errors; `assumptions` says what was taken for granted.
    """

    method: Literal["formula", "trace"]
    peak_allocated_bytes: int
    components: dict[str, int]
    peak_reserved_bytes: int | None = None
    low_bytes: int | None = None
    high_bytes: int | None = None
    limit_bytes: int | None = None
    assumptions: dict[str, Any] = field(default_factory=dict)
    advice: tuple[AdviceItem, ...] = ()
    timeline: tuple[tuple[str, int], ...] = ()
    peak_device_bytes: int | None = None
    phases: dict[str, int] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    fits_by_replay: bool | None = None

    @property
    def needed_bytes(self) -> int:
        """What a limit is compared with: the device's bytes where they are known, else the tensors'."""
        return self.peak_allocated_bytes if self.peak_device_bytes is None else self.peak_device_bytes

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
    def surely_too_large(self) -> bool:
        """Whether even the least that it may need is over the limit."""
        least = self.needed_bytes if self.low_bytes is None else min(self.low_bytes, self.needed_bytes)
        return self.fits is False and self.limit_bytes is not None and least > self.limit_bytes

    def verdict(self) -> str:
        """One line for people."""
        if self.limit_bytes is None:
            return f"needs {format_bytes(self.needed_bytes)}"
        words = "fits" if self.fits else "will not fit"
        return f"{words}: needs {format_bytes(self.needed_bytes)} of {format_bytes(self.limit_bytes)} (predicted by {self.method})"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "method": self.method,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_device_bytes": self.peak_device_bytes,
            "low_bytes": self.low_bytes,
            "high_bytes": self.high_bytes,
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "components": dict(self.components),
            "phases": dict(self.phases),
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
            low_bytes=self.low_bytes,
            high_bytes=self.high_bytes,
            limit_bytes=self.limit_bytes,
            components=dict(self.components),
            assumptions=dict(self.assumptions),
            advice=list(self.advice),
        )
