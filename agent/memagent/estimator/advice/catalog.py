"""The catalogue of changes that save memory, and how to choose and rank them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from memagent.estimator.advice.change import MemoryChange
from memagent.estimator.advice.program_changes import PROGRAM_CHANGES, SmallerBatch
from memagent.estimator.advice.script_profile import ScriptProfile
from memagent.estimator.advice.state_changes import STATE_CHANGES
from memagent.estimator.estimate import Estimate
from memagent.wire.messages import AdviceItem

# among changes of one cost, the first is advised: the order of the tables is part of the result
CHANGES = tuple(sorted((*PROGRAM_CHANGES, *STATE_CHANGES), key=lambda change: change.cost_rank))

BY_KEY = {change.key: change for change in CHANGES}
KEYS_BY_NAME = {
    **{change.name: change.key for change in CHANGES},
    SmallerBatch.name: SmallerBatch.key,
}
"""Keys of the changes that an advice from the wire names."""
_COST_RANKS = {
    **{change.key: change.cost_rank for change in CHANGES},
    SmallerBatch.key: SmallerBatch.cost_rank,
}
_UNKNOWN_COST_RANK = 3
MIN_SAVING_RATIO = 0.01
"""Savings below this ratio of the needed bytes are not listed."""
TOGETHER = "Together: "
_MAX_NAME_LENGTH = 200


@dataclass(frozen=True)
class EvaluatedChange:
    """A change, and the run's estimate with it."""

    change: MemoryChange
    estimate: Estimate


def rank(
    now: Estimate, evaluated: Iterable[EvaluatedChange], script: ScriptProfile
) -> list[AdviceItem]:
    """Return the changes that are worth listing: largest saving, then lowest cost first."""
    minimum = MIN_SAVING_RATIO * now.needed_bytes
    worth = [e for e in evaluated if now.needed_bytes - e.estimate.needed_bytes >= minimum]
    worth.sort(key=lambda e: (e.estimate.needed_bytes, e.change.cost_rank))
    return [advice_item(now, (e.change,), e.estimate, script) for e in worth]


def advice_item(
    now: Estimate, changes: tuple[MemoryChange, ...], then: Estimate, script: ScriptProfile
) -> AdviceItem:
    """Return the advice for one change, or for several together."""
    name = " + ".join(change.name for change in changes)
    is_single = len(changes) == 1
    costs = [change.cost for change in changes if change.cost != "none" or is_single]
    return AdviceItem(
        change=name if is_single else (TOGETHER + name)[:_MAX_NAME_LENGTH],
        saving_bytes=now.needed_bytes - then.needed_bytes,
        cost="; ".join(costs),
        code="\n\n".join(change.snippet(script) for change in changes),
    )


class ChangeEvaluator(ABC):
    """Applies changes to a run, and estimates it again."""

    @abstractmethod
    def estimate(self, changes: Sequence[MemoryChange]) -> Estimate | None:
        """Return the estimate with the changes; None if one does not apply."""

    @abstractmethod
    def smaller_batches(self, now: Estimate) -> Iterator[SmallerBatch]:
        """Divide the batch in as few parts as fit; in two if no limit is known or nothing fits."""

    @abstractmethod
    def smallest_set(self, evaluated: Sequence[EvaluatedChange]) -> tuple[MemoryChange, ...] | None:
        """Return changes that fit together, on the same GPUs if possible."""

    def advise(self, now: Estimate, script: ScriptProfile) -> tuple[AdviceItem, ...]:
        """Return what would save memory, the largest saving first; `now` is without changes."""
        candidates = (*CHANGES, *self.smaller_batches(now))
        estimates = [(change, self.estimate((change,))) for change in candidates]
        evaluated = [
            EvaluatedChange(change, then) for change, then in estimates if then is not None
        ]
        items = rank(now, evaluated, script)
        if needs_set(now, evaluated):
            chosen = self.smallest_set(evaluated)
            then = self.estimate(chosen) if chosen else None
            if chosen and then is not None:
                items.insert(0, advice_item(now, chosen, then, script))
        return tuple(items)


def is_enough(then: Estimate) -> bool:
    """Return True if it fits without the allocator releasing its cache."""
    return then.outcome == "fits" and not then.gives_back


def needs_set(now: Estimate, evaluated: Iterable[EvaluatedChange]) -> bool:
    """Return True if it isn't sure to fit, nor with any one change on the same GPUs."""
    return now.outcome in ("tight", "won't fit") and not any(
        is_enough(e.estimate) for e in evaluated if not e.change.needs_more_gpus
    )


def cheapest_that_fits(estimate: Estimate) -> AdviceItem | None:
    """Return the advice of the lowest cost that makes it fit; None if it fits or nothing helps."""
    if estimate.limit_bytes is None or estimate.fits:
        return None

    def cost_rank(item: AdviceItem) -> int:
        return _COST_RANKS.get(KEYS_BY_NAME.get(item.change, ""), _UNKNOWN_COST_RANK)

    fitting = [item for item in estimate.advice if estimate.fits_with(item.saving_bytes)]
    return min(fitting, key=cost_rank, default=None)


def are_compatible(changes: Sequence[MemoryChange]) -> bool:
    """Return True if these can be applied together."""
    groups = [group for change in changes for group in change.groups]
    return len(groups) == len(set(groups))


def smallest_set(
    changes: Sequence[MemoryChange],
    fits: Callable[[tuple[MemoryChange, ...]], bool],
    *,
    max_tries: int,
) -> tuple[MemoryChange, ...] | None:
    """Return two or more compatible changes that make it fit; None if nothing does.

    1. While `max_tries` allows, try pairs, then triples and so on, those of the lowest cost first.
    2. Then apply changes in the given order until it fits, and drop each that isn't needed, the
       last first.
    """
    tries_left = max_tries
    for size in range(2, len(changes) + 1):
        sets = sorted(filter(are_compatible, combinations(changes, size)), key=_set_cost)
        if len(sets) > tries_left:
            break
        tries_left -= len(sets)
        chosen = next((candidate for candidate in sets if fits(candidate)), None)
        if chosen is not None:
            return chosen
    return _pruned(changes, fits)


def _set_cost(changes: tuple[MemoryChange, ...]) -> tuple[int, int]:
    """Order sets by their highest cost, then by the sum."""
    return max(change.cost_rank for change in changes), sum(change.cost_rank for change in changes)


def _pruned(
    changes: Sequence[MemoryChange], fits: Callable[[tuple[MemoryChange, ...]], bool]
) -> tuple[MemoryChange, ...] | None:
    """Find by bisection how many of the first changes fit, then drop those that are not needed."""
    too_few, enough = 1, len(changes)
    # if all together are not enough, nothing is
    if enough < 2 or not fits(_compatible_prefix(changes, enough)):
        return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fits(_compatible_prefix(changes, middle)):
            enough = middle
        else:
            too_few = middle
    chosen = _compatible_prefix(changes, enough)
    # the last first: they are the least gentle ones
    for change in reversed(chosen):
        fewer = tuple(other for other in chosen if other is not change)
        if len(fewer) > 1 and fits(fewer):
            chosen = fewer
    return chosen


def _compatible_prefix(changes: Sequence[MemoryChange], count: int) -> tuple[MemoryChange, ...]:
    """Return the first `count` changes, less those that an earlier one excludes."""
    chosen: tuple[MemoryChange, ...] = ()
    for change in changes[:count]:
        if all(are_compatible((other, change)) for other in chosen):
            chosen = (*chosen, change)
    return chosen


def batch_divisors(batch: int) -> Iterator[int]:
    """Iterate over the numbers of equal parts that a batch can be divided into, from 2 up."""
    return (parts for parts in range(2, batch + 1) if batch % parts == 0)


def with_fewest_parts(
    batch: int, chosen: tuple[MemoryChange, ...], fits: Callable[[tuple[MemoryChange, ...]], bool]
) -> tuple[MemoryChange, ...]:
    """Return the same set, with its batch in as few parts as fit."""
    if all(change.key != SmallerBatch.key for change in chosen):
        return chosen
    for parts in batch_divisors(batch):
        fewer = tuple(
            SmallerBatch(batch, parts) if change.key == SmallerBatch.key else change
            for change in chosen
        )
        if parts == batch or fits(fewer):
            return fewer
    return chosen
