"""The choice of blocks that run again so that a step fits, with as few operations as possible.

1. Up to MAX_EXHAUSTIVE blocks, all sets are tried.
2. Beyond, three greedy choices are made: blocks are added to none, or taken out of the set of all,
   by their operations or by what they save for these. Each is then exchanged for a cheaper one as
   long as that fits, and the cheapest of the three choices is returned.
3. Of equal blocks, the first in the model run again: their values would wait the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memagent.fitting.profile import StepProfile

MAX_EXHAUSTIVE = 12
"""Sets of so many blocks number 4,096."""

Choice = frozenset[int]


def cheapest(profile: StepProfile, limit_bytes: int) -> Choice | None:
    """Return the blocks (by index) to run again for a peak within the limit; None if none is.

    The empty set if it fits as it is.
    """
    everything = frozenset(range(len(profile.blocks)))
    if len(everything) <= MAX_EXHAUSTIVE:
        return _first_that_fits(profile, limit_bytes, _by_cost(profile))
    if profile.peak_bytes(everything) > limit_bytes:
        return None
    return _nearly_cheapest(profile, limit_bytes)


def challengers(profile: StepProfile, limit_bytes: int, share: float) -> list[Choice]:
    """Return the sets below a share of operations to which no block can be added, up to a peak.

    The lowest peak comes first. There are none for more than MAX_EXHAUSTIVE blocks.
    """
    count = len(profile.blocks)
    if count > MAX_EXHAUSTIVE:
        return []
    below = {choice for choice in _by_cost(profile) if profile.share(choice) < share}
    whole = [c for c in below if not any(c | {n} in below for n in range(count) if n not in c)]
    within = [choice for choice in whole if profile.peak_bytes(choice) <= limit_bytes]
    return sorted(within, key=lambda choice: (profile.peak_bytes(choice), sorted(choice)))


def _first_that_fits(
    profile: StepProfile, limit_bytes: int, choices: Iterable[Choice]
) -> Choice | None:
    return next((c for c in choices if profile.peak_bytes(c) <= limit_bytes), None)


def _by_cost(profile: StepProfile) -> list[Choice]:
    """Return all sets, the cheapest first, and of equals that with the lowest indices."""
    count = len(profile.blocks)
    choices = [
        tuple(index for index in range(count) if mask >> index & 1) for mask in range(1 << count)
    ]
    choices.sort(key=lambda c: (_operations(profile, c), len(c), c))
    return [frozenset(choice) for choice in choices]


def _nearly_cheapest(profile: StepProfile, limit_bytes: int) -> Choice:
    """Return the best of three greedy choices; the set of all has to fit."""
    blocks = profile.blocks

    def worth(index: int) -> tuple[float, int]:
        return -blocks[index].operations / blocks[index].saved_bytes, -index

    def operations(index: int) -> tuple[float, int]:
        return -blocks[index].operations, -index

    everything = frozenset(range(len(blocks)))
    starts = (
        _reduced(profile, limit_bytes, everything, worth),
        _reduced(profile, limit_bytes, everything, operations),
        _reduced(profile, limit_bytes, _grown(profile, limit_bytes), operations),
    )
    choices = [
        _reduced(profile, limit_bytes, _exchanged(profile, limit_bytes, start), operations)
        for start in starts
    ]
    return min(choices, key=lambda choice: _operations(profile, choice))


def _grown(profile: StepProfile, limit_bytes: int) -> Choice:
    """Add the block that saves the most for its operations, until it fits."""
    choice: Choice = frozenset()
    peak = profile.peak_bytes(choice)
    others = set(range(len(profile.blocks)))

    def worth(index: int) -> tuple[float, float, int]:
        saved = peak - profile.peak_bytes(choice | {index})
        block = profile.blocks[index]
        # a peak in two places falls by two blocks: then the bytes that one keeps decide
        return saved / block.operations, block.saved_bytes / block.operations, -index

    while peak > limit_bytes and others:
        best = max(others, key=worth)
        others.discard(best)
        choice |= {best}
        peak = profile.peak_bytes(choice)
    return choice


def _reduced(
    profile: StepProfile,
    limit_bytes: int,
    choice: Choice,
    order: Callable[[int], tuple[float, int]],
) -> Choice:
    """Take blocks out in this order, each if it then fits."""
    for index in sorted(choice, key=order):
        if profile.peak_bytes(choice - {index}) <= limit_bytes:
            choice -= {index}
    return choice


def _exchanged(profile: StepProfile, limit_bytes: int, choice: Choice) -> Choice:
    """Replace single blocks by cheaper ones outside the set, as long as that fits."""
    others = sorted(
        set(range(len(profile.blocks))) - choice, key=lambda index: profile.blocks[index].operations
    )
    for index in sorted(choice, key=lambda index: -profile.blocks[index].operations):
        for other in others:
            if profile.blocks[other].operations >= profile.blocks[index].operations:
                break
            changed = choice - {index} | {other}
            if profile.peak_bytes(changed) <= limit_bytes:
                choice = changed
                others.remove(other)
                break
    return choice


def _operations(profile: StepProfile, choice: Iterable[int]) -> int:
    return sum(profile.blocks[index].operations for index in choice)
