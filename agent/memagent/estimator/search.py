"""What fits: the largest batch by bisection, and a table over batches and sequences. Each point is an estimate of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from memagent.errors import EstimateError
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training

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
    most: int = LARGEST,
    estimator: Estimator | None = None,
) -> int:
    """The largest batch that fits `limit_bytes` (default: the GPU's), a multiple of `multiple_of`; 0 where not even that many fit.

    `sure` compares the upper end of the estimate's interval instead of its middle. `most` ends the search: more is not asked for. Raises
    EstimateError where no limit is known, and where the batch makes no difference.
    """
    limit = (
        limit_bytes
        if limit_bytes is not None
        else spec.gpu_rule.total_bytes
        if spec.gpu_rule
        else None
    )
    if limit is None:
        raise EstimateError("no limit to fit into: give limit_bytes, or the spec's gpu")
    if multiple_of < 1:
        raise EstimateError(f"multiple_of is {multiple_of}: give 1 or more")

    def room(count: int) -> int:
        return limit - _needed(replace(spec, batch=count * multiple_of), estimator, sure=sure)

    return multiple_of * largest_count(room, most=most // multiple_of)


def largest_count(room: Callable[[int], int], *, most: int = LARGEST, grain: float = 0.0) -> int:
    """The largest count from 1 to `most` whose room is not negative; 0 where there is none. Room shrinks as the count grows. With `grain`
    the answer fits, and is short of the largest by no more than that share of itself.

    Needs grow nearly in proportion to the count, so the line through two points says where to look next, and every third question halves
    what is left: some six questions, each of which may be a trace. Raises EstimateError where LARGEST still fits.
    """
    low, left = 1, room(1)
    if left < 0:
        return 0
    high, guess, asked_before = most + 1, 2, 0
    while high - low > max(1, grain * low):
        asked = min(max(guess, low + 1), high - 1)
        found = room(asked)
        slope = (left - found) / (asked - low)
        if found < 0:
            high = asked
        else:
            low, left = asked, found
        asked_before += 1
        if high <= most and asked_before % 3 == 0:
            guess = (low + high) // 2
        else:
            guess = min(low + int(left / slope), 16 * low) if slope > 0 else 16 * low
    if low == LARGEST:
        raise EstimateError(
            f"a batch of {low} still fits: is anything known of this model's activations?"
        )
    return low


def _needed(spec: TrainingSpec, estimator: Estimator | None, *, sure: bool) -> int:
    found = (estimator or estimate_training)(spec)
    level = "allocated" if found.peak_device_bytes is None else "device"
    return found.intervals[level][1] if sure and level in found.intervals else found.needed_bytes


def sweep(
    spec: TrainingSpec,
    *,
    batches: Iterable[int],
    sequences: Iterable[int] = (),
    limit_bytes: int | None = None,
) -> Iterator[SweepPoint]:
    """Estimates for each sequence and batch, in the order given; without `sequences` for the spec's own."""
    for sequence in tuple(sequences) or (spec.positions,):
        for batch in batches:
            changed = replace(spec, batch=batch, sequence=sequence)
            yield SweepPoint(batch, sequence, estimate_training(changed, limit_bytes=limit_bytes))
