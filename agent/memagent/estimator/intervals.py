"""How far off an estimate may be, at each level: intervals that hold nine peaks of ten.

1. What is held from step to step whatever the input (parameters, optimizer state) is counted exactly. Errors come with what comes and
   goes within a step, so all widths are shares of these *passing* bytes.
2. A `Spread` has the shares below and above the estimate, one for the tensors themselves and one for what the allocator makes of them. They
   are quantiles of measured errors, each training's judged by the other models' alone (`python -m benchmarks.estimator`;
   docs/estimator-accuracy.md says how many there were, which is few on GPUs).
3. Each level has the errors of those below it and one of its own: tensors; what the allocator cannot reuse; the context, where it was not
   measured. They have nothing to do with each other, so their widths add up as squares do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from memagent.estimator.estimate import Interval

Share = tuple[float, float]

FRAGMENTED = 0.33
"""What the caching allocator reserves beyond the tensors' peak, as a share of all that comes and goes within a step: the middle of 32
measured fine-tunings, from 0.1 to 0.8; without any one of their three models it is 0.29 to 0.35. What stays (parameters and states)
leaves no holes."""


@dataclass(frozen=True)
class Spread:
    """Shares of the passing bytes that the truth may lie (below, above) the estimate."""

    tensors: Share
    fragmentation: Share = (0.0, 0.0)


TRACED = Spread(tensors=(0.01, 0.02), fragmentation=(0.1, 0.15))
"""A step traced for CUDA. Six measured peaks lay within 0.2 % of what passes; the rest is for kernels' own scratch on other GPUs."""
TRACED_CONVOLUTIONS = Spread(tensors=(0.01, 0.1), fragmentation=(0.1, 0.15))
"""cuDNN chooses its workspace when it runs, by what is free. oneDNN's for the same convolutions took up to 6 % of the peak on a CPU."""
TRACED_ON_HOST = Spread(tensors=(0.005, 0.005))
"""58 of 58 peaks of the zoo were exact; a host's kernels have scratch too."""
FROM_SHAPE = Spread(tensors=(0.02, 0.055), fragmentation=(0.2, 0.45))
"""50 trainings of nine families whose options were known; each family's judged by the others' quantiles: 88 % within."""
FROM_MODULES = Spread(tensors=(0.6, 2.4), fragmentation=(0.2, 0.45))
"""Activations by module: nothing is seen of what runs outside of modules, nor of autocast and checkpointing. The zoo's 58 trainings of 17
families: 84 % within what the other families' say."""


def intervals_of(
    spread: Spread,
    *,
    passing_bytes: float,
    allocated: int,
    reserved: int | None = None,
    device: int | None = None,
    context: Interval | None = None,
) -> dict[str, Interval]:
    """The interval of each level that is known. `context` is (below, above) of `context_widths`."""
    below, above = (share * passing_bytes for share in spread.tensors)
    held = allocated - passing_bytes
    found = {"allocated": _around(allocated, below, above, least=held)}
    below, above = (
        hypot(a, b * passing_bytes)
        for a, b in zip((below, above), spread.fragmentation, strict=True)
    )
    if reserved is not None:
        found["reserved"] = _around(reserved, below, above, least=found["allocated"][0])
    if device is not None:
        lower, higher = context or (0, 0)
        found["device"] = _around(
            device, hypot(below, lower), hypot(above, higher), least=found["allocated"][0]
        )
    return found


def context_widths(size_bytes: int, interval: Interval | None) -> Interval | None:
    """(below, above) of a context that was not measured."""
    if interval is None:
        return None
    low, high = interval
    return max(0, size_bytes - low), max(0, high - size_bytes)


def _around(middle: int, below: float, above: float, *, least: float) -> Interval:
    """No level goes below what the one before it holds at least."""
    return min(middle, max(round(middle - below), round(least), 0)), round(middle + above)
