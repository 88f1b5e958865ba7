"""Blocks, and the free blocks of one pool on one stream.

torch keeps one ordered set for each pool over all streams, with the stream first in the order. A
search never leaves its stream, so one set for each stream and pool finds the same blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

_ADDRESS_BITS = 57
"""Enough for a device address. A block's sort key holds its size above these bits."""
_MAX_RUN = 1024
"""Numbers in one run of a `SortedIntSet`."""


@dataclass(eq=False, slots=True)
class Block:
    """A part of a segment: allocated, waiting for a stream (`busy` only), or free.

    `mapped` is False for address space of an expandable segment without memory behind it.
    """

    address: int
    size: int
    pool: Pool
    requested: int = 0
    allocated: bool = False
    busy: bool = False
    mapped: bool = True
    prev: Block | None = None
    next: Block | None = None
    expandable: AddressRange | None = None
    gc_base: int = 0
    id: int = 0

    def is_split(self) -> bool:
        """Return whether the block shares its segment with others."""
        return self.prev is not None or self.next is not None


@dataclass(eq=False, slots=True)
class AddressRange:
    """The reserved addresses of one expandable segment, mapped page by page."""

    start: int
    size: int
    page: int


class Pool:
    """The blocks of one stream for small requests, or for large ones."""

    __slots__ = ("_by_key", "_keys", "searches", "small", "stream", "unmapped")

    def __init__(self, stream: int, *, small: bool) -> None:
        self.stream = stream
        self.small = small
        self.searches = 0  # garbage collection measures the age of a free block in searches
        self.unmapped: list[Block] = []  # of expandable segments, by address
        self._keys = SortedIntSet()
        self._by_key: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, block: Block) -> None:
        """Add a free block."""
        key = block.size << _ADDRESS_BITS | block.address
        block.gc_base = self.searches
        self._by_key[key] = block
        self._keys.add(key)

    def remove(self, block: Block) -> None:
        """Remove a block that gets allocated, merged or released."""
        key = block.size << _ADDRESS_BITS | block.address
        del self._by_key[key]
        self._keys.remove(key)

    def best_fit(self, size: int) -> Block | None:
        """Return the smallest free block of at least `size` bytes, at the lowest address."""
        key = self._keys.at_least(size << _ADDRESS_BITS)
        return self._by_key[key] if key >= 0 else None

    def next_fit(self, block: Block) -> Block | None:
        """Return the free block after `block` in the order of `best_fit`."""
        # one more than the block's own key
        key = self._keys.at_least((block.size << _ADDRESS_BITS | block.address) + 1)
        return self._by_key[key] if key >= 0 else None

    def free_blocks(self) -> list[Block]:
        """Return all free blocks, the smallest first."""
        return [self._by_key[key] for key in self._keys]


class SortedIntSet:
    """A set of non-negative integers in ascending order with a fast `at_least`.

    torch uses a tree. In CPython a list of short sorted lists is faster, because moving a thousand
    pointers takes less time than a walk. With half a million free blocks, a change still touches
    two short lists only.
    """

    __slots__ = ("_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[int]] = []  # each is sorted and not empty
        self._lasts: list[int] = []  # the largest number of each run

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[int]:
        """Yield all numbers in order. Copy them before you change the set in the loop."""
        for run in self._runs:
            yield from run

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        lasts = self._lasts
        index = bisect_left(lasts, number)
        # larger than all: it goes to the end of the last run
        if index == len(lasts):
            if not lasts:
                self._runs.append([number])
                lasts.append(number)
                return
            index -= 1
            lasts[index] = number
        run = self._runs[index]
        insort(run, number)
        if len(run) > _MAX_RUN:
            half = len(run) // 2
            self._runs.insert(index + 1, run[half:])
            del run[half:]
            lasts.insert(index, run[-1])

    def remove(self, number: int) -> None:
        """Remove a number that is in the set."""
        index = bisect_left(self._lasts, number)
        run = self._runs[index]
        del run[bisect_left(run, number)]
        if not run:
            del self._runs[index], self._lasts[index]
        else:
            self._lasts[index] = run[-1]

    def at_least(self, number: int) -> int:
        """Return the smallest member that is not below `number`, or -1."""
        index = bisect_left(self._lasts, number)
        if index == len(self._lasts):
            return -1
        run = self._runs[index]
        return run[bisect_left(run, number)]


def link(block: Block, before: Block | None, after: Block | None) -> None:
    """Link a block between two neighbors of its segment."""
    block.prev = before
    block.next = after
    if before is not None:
        before.next = block
    if after is not None:
        after.prev = block
