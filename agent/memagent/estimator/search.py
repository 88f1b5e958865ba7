"""What fits: the largest batch by bisection, and a table over batches and sequences. Each point is an estimate of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from memagent.errors import EstimateError
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula import estimate_training
from memagent.estimator.spec import TrainingSpec

LARGEST = 1 << 20
"""Batches are looked for up to here."""

Estimator = Callable[[TrainingSpec], Estimate]


@dataclass(frozen=True)
class SweepPoint:
    """One cell of the table."""

    batch: int
    sequence: int
    estimate: Estimate


def largest_batch(
    spec: TrainingSpec,
    limit_bytes: int | None = None,
    *,
    sure: bool = False,
    multiple_of: int = 1,
    estimator: Estimator | None = None,
) -> int:
    """The largest batch that fits `limit_bytes` (default: the GPU's), a multiple of `multiple_of`; 0 where not even that many fit.

    `sure` compares the upper end of the estimate's interval instead of its middle. Needs grow with the batch, so bisection finds it in
    at most 40 estimates. Raises EstimateError where no limit is known, and where the batch makes no difference.
    """
    limit = limit_bytes if limit_bytes is not None else spec.gpu_rule.total_bytes if spec.gpu_rule else None
    if limit is None:
        raise EstimateError("no limit to fit into: give limit_bytes, or the spec's gpu")
    if multiple_of < 1:
        raise EstimateError(f"multiple_of is {multiple_of}: give 1 or more")

    def fits(count: int) -> bool:
        return _needed(replace(spec, batch=count * multiple_of), estimator, sure=sure) <= limit

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 2
        if high * multiple_of > LARGEST:
            raise EstimateError(
                f"a batch of {low * multiple_of} still fits: is anything known of this model's activations?"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * multiple_of


def _needed(spec: TrainingSpec, estimator: Estimator | None, *, sure: bool) -> int:
    found = (estimator or estimate_training)(spec)
    level = "allocated" if found.peak_device_bytes is None else "device"
    return found.intervals[level][1] if sure and level in found.intervals else found.needed_bytes


def sweep(
    spec: TrainingSpec, *, batches: Iterable[int], sequences: Iterable[int] = (), limit_bytes: int | None = None
) -> Iterator[SweepPoint]:
    """Estimates for each sequence and batch, in the order given; without `sequences` for the spec's own."""
    for sequence in tuple(sequences) or (spec.positions,):
        for batch in batches:
            changed = replace(spec, batch=batch, sequence=sequence)
            yield SweepPoint(batch, sequence, estimate_training(changed, limit_bytes=limit_bytes))
