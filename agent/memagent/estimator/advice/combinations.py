"""Which changes together make a run fit: the smallest set there is, or, where that is too much to try, one that none can be left out of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from memagent.estimator.advice.catalog import Change, are_compatible

Fits = Callable[[tuple[Change, ...]], bool]


def smallest_set(changes: Sequence[Change], fits: Fits, *, tries: int) -> tuple[Change, ...] | None:
    """Two or more compatible changes that make it fit; None where nothing does. `fits` is asked no more than about `tries` times.

    1. While tries last, pairs are tried, then triples, and so on, those that cost least speed first.
    2. Then changes are taken in the order given until it fits, and each that is not needed is dropped, the last first.
    """
    left = tries
    for size in range(2, len(changes) + 1):
        sets = sorted(_sets(changes, size), key=_pain)
        if len(sets) > left:
            break
        left -= len(sets)
        found = next((chosen for chosen in sets if fits(chosen)), None)
        if found is not None:
            return found
    return _pruned(changes, fits)


def _sets(changes: Sequence[Change], size: int) -> Iterator[tuple[Change, ...]]:
    return (chosen for chosen in combinations(changes, size) if are_compatible(chosen))


def _pain(chosen: tuple[Change, ...]) -> tuple[int, int]:
    """What hurts most decides, then the sum."""
    return max(change.pain for change in chosen), sum(change.pain for change in chosen)


def _pruned(changes: Sequence[Change], fits: Fits) -> tuple[Change, ...] | None:
    """The first so many that fit, found by halving; then without those that are not needed."""
    too_few, enough = 1, len(changes)
    if enough < 2 or not fits(_taken(changes, enough)):
        return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(_taken(changes, middle)) else (middle, enough)
    chosen = _taken(changes, enough)
    for change in reversed(chosen):
        fewer = tuple(other for other in chosen if other is not change)
        if len(fewer) > 1 and fits(fewer):
            chosen = fewer
    return chosen


def _taken(changes: Sequence[Change], count: int) -> tuple[Change, ...]:
    """The first `count`, less those that make no sense beside an earlier one."""
    chosen: tuple[Change, ...] = ()
    for change in changes[:count]:
        if all(are_compatible((other, change)) for other in chosen):
            chosen = (*chosen, change)
    return chosen
