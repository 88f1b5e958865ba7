"""Tensors that are created again each step, longer each time: `buffer = torch.cat([buffer, x])`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memagent.components import live_objects
from memagent.leaks import census
from memagent.leaks.census import MIN_SHARE, Census, TensorEntry

MAX_DEVIATION = 0.15
"""Largest distance of a length in the middle from a line, as a share of what is added.

A cache that is cut now and then isn't near the line.
"""
MIN_RARE_ITEMS = 3
"""Items that a window adds to a tensor which is lengthened now and then."""
Family = tuple[Any, ...]
"""What tensors have in common that differ in one length only."""


@dataclass(frozen=True)
class LengtheningTensor:
    """A tensor that is created again each step, longer each time."""

    tensors: list[Any]
    """The tensor alone. It's freed within a step."""
    bytes_per_step: int
    family: Family
    is_in_turn: bool = False
    """True for one of several tensors that are lengthened in turn."""

    def find_now(self) -> list[Any]:
        """Return the longest tensors of this kind that are alive now: a view, and its base."""
        tensors = live_objects.live_tensors()
        entries = census.take(0, tensors).entries
        lengths = {
            key: length
            for key, entry in entries.items()
            for axis, length in enumerate(entry.shape)
            if _family(entry, axis) == self.family
        }
        longest = max(lengths.values(), default=0)
        return [tensor for tensor in tensors if lengths.get(id(tensor)) == longest]


def lengthening_tensors(
    first: Census,
    before_last: Census,
    last: Census,
    tensors: Iterable[Any],
    middle: Census | None = None,
) -> list[LengtheningTensor]:
    """Return tensors like `buffer = torch.cat([buffer, x])`, most bytes first.

    One dimension grows as steadily as the steps do; the others stay. Of several buffers that are
    lengthened in turn, or now and then, only the sum of the lengths does.
    """
    longer = _lengthening_each_step(first, middle, before_last, last, tensors)
    if not longer and middle is not None:
        longer = _lengthening_in_turn(first, middle, before_last, last, tensors)
    return sorted(longer, key=lambda item: -item.bytes_per_step)


def _lengthening_each_step(
    first: Census, middle: Census | None, before_last: Census, last: Census, tensors: Iterable[Any]
) -> list[LengtheningTensor]:
    old, recent = _lengths_by_family(first), _lengths_by_family(before_last)
    halfway = {} if middle is None else _lengths_by_family(middle)
    steps = last.step - first.step
    lengthening = []
    for tensor in tensors:
        entry = last.entries.get(id(tensor))
        # this very tensor was there before, as long: it was neither created again nor extended
        if entry is None or before_last.has(tensor, entry, entry.shape):
            continue
        for axis, length in enumerate(entry.shape):
            family = _family(entry, axis)
            earliest, latest = old.get(family, ()), recent.get(family, ())
            starts = [
                a
                for a in earliest
                if any(_is_line(a, b, length, first, before_last, last) for b in latest)
                and (
                    middle is None
                    or _passes(a, length, first, middle, last, halfway.get(family, set()))
                )
            ]
            if length > 2 and starts:
                start = min(starts)
                rate = round(entry.size_bytes * (length - start) / length / steps)
                lengthening.append(LengtheningTensor([tensor], rate, family))
                break
    return lengthening


def _lengthening_in_turn(
    first: Census, middle: Census, before_last: Census, last: Census, tensors: Iterable[Any]
) -> list[LengtheningTensor]:
    """Return the longest new tensor of each family with as many members, but more in all.

    Less than one item a step is enough for what outlives a step: no batch does.
    """
    sums = [_sums_by_family(item) for item in (first, middle, last)]
    steps = last.step - first.step
    late_share = (last.step - middle.step) / max(1, steps)
    longest: dict[Family, LengtheningTensor] = {}
    new = [
        (last.entries[id(tensor)].size_bytes, index, tensor)
        for index, tensor in enumerate(tensors)
        if id(tensor) in last.entries and not first.has(tensor, last.entries[id(tensor)])
    ]
    for _, _, tensor in sorted(new):
        entry = last.entries[id(tensor)]
        for axis, length in enumerate(entry.shape):
            family = _family(entry, axis)
            (count, early), (_, half), (now, late) = (item.get(family, (0, 0)) for item in sums)
            growth = late - early
            is_steady = late - half >= MIN_SHARE * late_share * growth
            is_steady &= half - early >= MIN_SHARE * (1 - late_share) * growth
            least = MIN_RARE_ITEMS if before_last.has(tensor, entry, entry.shape) else steps
            if count == now and length > 2 and growth >= least and is_steady:
                rate = round(entry.size_bytes / length * growth / steps)
                longest[family] = LengtheningTensor([tensor], rate, family, is_in_turn=True)
    return list(longest.values())


def _sums_by_family(tensors: Census) -> dict[Family, tuple[int, int]]:
    """Return the number of tensors, and the sum of their lengths."""
    sums: dict[Family, tuple[int, int]] = {}
    for entry in tensors.entries.values():
        for axis, length in enumerate(entry.shape):
            count, total = sums.get(family := _family(entry, axis), (0, 0))
            sums[family] = count + 1, total + length
    return sums


def _is_line(a: int, b: int, c: int, first: Census, before_last: Census, last: Census) -> bool:
    """Return True if three lengths rise on a line, to within a quarter of a step's growth."""
    if not a < b < c:
        return False
    slope = (c - a) / (last.step - first.step)
    return abs(c - b - slope * (last.step - before_last.step)) <= 0.25 * slope + 1e-9


def _passes(
    start: int, end: int, first: Census, middle: Census, last: Census, lengths: set[int]
) -> bool:
    """Return True if one of the lengths in the middle is near the line from start to end."""
    share = (middle.step - first.step) / max(1, last.step - first.step)
    expected = start + share * (end - start)
    return any(abs(length - expected) <= MAX_DEVIATION * (end - start) for length in lengths)


def _family(entry: TensorEntry, axis: int) -> Family:
    """Return what tensors have in common that differ in the length of `axis` only."""
    return (entry.device, entry.dtype, axis, *entry.shape[:axis], -1, *entry.shape[axis + 1 :])


def _lengths_by_family(tensors: Census) -> dict[Family, set[int]]:
    families: dict[Family, set[int]] = {}
    for entry in tensors.entries.values():
        for axis, length in enumerate(entry.shape):
            families.setdefault(_family(entry, axis), set()).add(length)
    return families
