"""The interval of an estimate at each level: nine peaks of ten lie within.

1. Parameters and optimizer state stay from step to step whatever the input, and are counted
   exactly. Errors come with what comes and goes within a step, so all widths are ratios of these
   *passing* bytes.
2. An `ErrorModel` has the ratios below and above the estimate: one pair for the tensors, one for
   what the allocator makes of them. They are quantiles of measured errors, each training's judged
   by the other models' alone (`python -m benchmarks.estimator`; docs/estimator-accuracy.md has the
   number of trainings, which is low on GPUs).
3. Each level has the errors of the levels below it and one more: tensors; what the allocator cannot
   reuse; the context, if it wasn't measured. They are independent, so their widths add up as
   squares do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from memagent.estimator.estimate import Interval

ErrorRatios = tuple[float, float]
"""Ratios of the passing bytes, (below, above) the estimate."""

FRAGMENTATION_RATIO = 0.33
"""Ratio of the passing bytes that the caching allocator reserves beyond the tensors' peak.

Fitted to 32 measured fine-tunings (0.1 to 0.8, this is the median); without any one of their three
models it is 0.29 to 0.35. Parameters and states leave no holes."""


@dataclass(frozen=True)
class ErrorModel:
    """Error ratios of the tensors' peak, and of what the allocator adds."""

    tensors: ErrorRatios
    fragmentation: ErrorRatios = (0.0, 0.0)


TRACED = ErrorModel(tensors=(0.01, 0.02), fragmentation=(0.1, 0.15))
"""A step traced for CUDA. Six measured peaks lay within 0.2 % of the passing bytes; the rest covers
kernels' own scratch memory on other GPUs."""
TRACED_CONVOLUTIONS = ErrorModel(tensors=(0.01, 0.1), fragmentation=(0.1, 0.15))
"""cuDNN chooses its workspace at run time, by what is free. oneDNN's for the same convolutions took
up to 6 % of the peak on a CPU."""
TRACED_ON_HOST = ErrorModel(tensors=(0.005, 0.005))
"""58 of 58 peaks of the benchmark zoo were exact; a host's kernels have scratch memory too."""
FROM_SHAPE = ErrorModel(tensors=(0.02, 0.055), fragmentation=(0.2, 0.45))
"""Fitted to 50 trainings of nine families with known options; judged by the other families'
quantiles, 88 % lie within."""
FROM_MODULES = ErrorModel(tensors=(0.6, 2.4), fragmentation=(0.2, 0.45))
"""Activations by module: operations outside of modules, autocast and checkpointing are not known.
Fitted to the benchmark zoo's 58 trainings of 17 families: 84 % lie within the other families'
quantiles."""


def intervals_of(
    errors: ErrorModel,
    *,
    passing_bytes: float,
    allocated: int,
    reserved: int | None = None,
    device: int | None = None,
    context: Interval | None = None,
) -> dict[str, Interval]:
    """Return the interval of each known level; `context` is the result of `context_widths`."""
    below, above = (ratio * passing_bytes for ratio in errors.tensors)
    tensors = _around(allocated, below, above, minimum=allocated - passing_bytes)
    intervals = {"allocated": tensors}
    below = hypot(below, errors.fragmentation[0] * passing_bytes)
    above = hypot(above, errors.fragmentation[1] * passing_bytes)
    if reserved is not None:
        intervals["reserved"] = _around(reserved, below, above, minimum=tensors[0])
    if device is not None:
        lower, higher = context or (0, 0)
        intervals["device"] = _around(
            device, hypot(below, lower), hypot(above, higher), minimum=tensors[0]
        )
    return intervals


def context_widths(size_bytes: int, interval: Interval | None) -> Interval | None:
    """Return the (below, above) of a context that wasn't measured."""
    if interval is None:
        return None
    low, high = interval
    return max(0, size_bytes - low), max(0, high - size_bytes)


def _around(middle: int, below: float, above: float, *, minimum: float) -> Interval:
    """Return the interval; no level starts below the minimum of the level before it."""
    return min(middle, max(round(middle - below), round(minimum), 0)), round(middle + above)
