"""Searches over requests: the largest batch that fits, and a grid of batches and sequences.

Each point is an estimate. The function that makes it is a parameter (`engine.estimate` or
`formula.training.estimate_formula`), so that a search by formula needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from memagent.errors import EstimateError, TraceError
from memagent.estimator.estimate import Estimate, FitVerdict
from memagent.estimator.request import EstimateRequest, TraceRequest

R = TypeVar("R", bound=EstimateRequest)

MAX_BATCH = 1 << 20
TRACED_TOLERANCE = 1 / 64
"""Ratio of the answer at which a search by trace stops: each trace takes seconds."""


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits, with its estimate; 0 and None if not even one sample fits.

    `too_large` is the smallest batch found to be tight or not to fit, None if all up to the maximum
    fit, and `outcome` that batch's.
    """

    batch: int
    too_large: int | None
    estimate: Estimate | None
    outcome: FitVerdict | None = None


@dataclass(frozen=True)
class GridPoint:
    """One estimate of a grid."""

    batch: int
    sequence: int | None
    estimate: Estimate


def largest_batch(
    request: R,
    estimate: Callable[[R], Estimate],
    *,
    max_batch: int = MAX_BATCH,
    on_batch: Callable[[int], None] | None = None,
) -> LargestBatch:
    """Return the largest batch up to `max_batch` that fits; `on_batch` gets each batch to estimate.

    Raises EstimateError if no limit is known or the batch makes no difference, and TraceError if
    the activations of a batch are not known.
    """
    estimates: dict[int, Estimate] = {}

    def room(batch: int) -> int:
        if on_batch is not None:
            on_batch(batch)
        current = estimates[batch] = estimate(_resized(request, batch, request.sequence))
        if current.is_bound and current.outcome != "won't fit":
            reason = current.assumptions["trace"]
            raise TraceError(f"the largest batch is not known: batch {batch} is {reason}")
        margin = current.sure_margin_bytes
        if margin is None:
            raise EstimateError("no limit to fit into: give a GPU, or memory such as 24GiB")
        # The allocator may succeed by releasing its cache, or fail because of fragments.
        return max(0, margin) if current.fits else min(-1, margin)

    tolerance = TRACED_TOLERANCE if isinstance(request, TraceRequest) else 0.0
    batch = largest_count(room, maximum=max_batch, tolerance=tolerance)
    too_large = min((size for size, result in estimates.items() if not result.fits), default=None)
    outcome = estimates[too_large].outcome if too_large is not None else None
    return LargestBatch(batch, too_large, estimates.get(batch), outcome)


def largest_count(
    room: Callable[[int], int], *, maximum: int = MAX_BATCH, tolerance: float = 0.0
) -> int:
    """Return the largest count up to `maximum` whose room isn't negative; 0 if there is none.

    Room shrinks as the count grows. With `tolerance` the result fits, and is short of the largest
    by at most that ratio of itself. Raises EstimateError if MAX_BATCH still fits.

    Needs grow nearly in proportion to the count, so the line through two points gives the next
    guess, and every third guess halves the range. That takes about six calls, each of which may be
    a trace.
    """
    low, low_room = 1, room(1)
    if low_room < 0:
        return 0
    high, guess, calls = maximum + 1, 2, 0
    while high - low > max(1, tolerance * low):
        count = min(max(guess, low + 1), high - 1)
        remaining = room(count)
        slope = (low_room - remaining) / (count - low)
        if remaining < 0:
            high = count
        else:
            low, low_room = count, remaining
        calls += 1
        if high <= maximum and calls % 3 == 0:
            guess = (low + high) // 2
        else:
            guess = min(low + int(low_room / slope), 16 * low) if slope > 0 else 16 * low
    if low == MAX_BATCH:
        raise EstimateError(
            f"a batch of {low} still fits: this model's activations are probably not known"
        )
    return low


def grid(
    request: R,
    estimate: Callable[[R], Estimate],
    *,
    batches: Iterable[int] = (),
    sequences: Iterable[int] = (),
    on_point: Callable[[int, int], None] | None = None,
) -> Iterator[GridPoint]:
    """Estimate each sequence and batch in the given order; the request's own if none are given.

    `on_point` gets the number of finished points and of all points before each one.
    """
    columns = tuple(batches) or (request.batch,)
    rows = tuple(sequences) or (request.sequence,)
    points = [(batch, sequence) for sequence in rows for batch in columns]
    for index, (batch, sequence) in enumerate(points):
        if on_point is not None:
            on_point(index, len(points))
        yield GridPoint(batch, sequence, estimate(_resized(request, batch, sequence)))


def _resized(request: R, batch: int, sequence: int | None) -> R:
    # each kind of request returns its own kind
    return request.resized(batch, sequence)  # type: ignore[return-value]
