"""Blocks, and the free blocks of one pool on one stream.

torch keeps one ordered set for each pool over all streams, with the stream first in the order. As no search ever leaves
its stream, one set for each stream and pool finds the same blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.allocator.sorted_ints import OrderedNumbers

ADDRESS_BITS = 57  # a device address fits; sizes stand above it in a block's key
_ADDRESS = (1 << ADDRESS_BITS) - 1


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment: given out (`allocated`), awaiting a stream (`busy` only), or free.

    `mapped` is False for address space of an expandable segment that has no memory behind it.
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
        """Whether the block shares its segment with others."""
        return self.prev is not None or self.next is not None

    def state(self) -> str:
        """The word torch's snapshots use for it."""
        return (
            "active_allocated"
            if self.allocated
            else "active_pending_free"
            if self.busy
            else "inactive"
        )


@dataclass(eq=False, slots=True)
class AddressRange:
    """The reserved addresses of one expandable segment, mapped page by page."""

    start: int
    size: int
    page: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a segment taken over from elsewhere: given out when something was requested (`pending`: its free waits
    for a stream), else free."""

    address: int
    size: int
    requested: int = 0
    pending: bool = False
    mapped: bool = True

    def block(self, pool: Pool, expandable: AddressRange | None = None) -> Block:
        """The block it stands for, linked to nothing yet."""
        return Block(
            self.address,
            self.size,
            pool,
            requested=self.requested,
            allocated=self.requested > 0 and not self.pending,
            mapped=self.mapped,
            expandable=expandable,
        )


class Pool:
    """The blocks of one stream that serve small requests, or large ones."""

    __slots__ = ("_by_key", "_order", "searches", "small", "stream", "unmapped")

    def __init__(self, stream: int, *, small: bool) -> None:
        self.stream = stream
        self.small = small
        self.searches = 0  # age of free blocks is counted in searches, for garbage collection
        self.unmapped: list[Block] = []  # of expandable segments, by address
        self._order = OrderedNumbers()
        self._by_key: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, block: Block) -> None:
        """A block became free."""
        key = block.size << ADDRESS_BITS | block.address
        block.gc_base = self.searches
        self._by_key[key] = block
        self._order.add(key)

    def remove(self, block: Block) -> None:
        """A free block is taken, merged or given back to the device."""
        key = block.size << ADDRESS_BITS | block.address
        del self._by_key[key]
        self._order.remove(key)

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes; of equals, the one with the lowest address."""
        key = self._order.at_least(size << ADDRESS_BITS)
        return self._by_key[key] if key >= 0 else None

    def following(self, block: Block) -> Block | None:
        """The next free block in the order of `best_fit`."""
        key = self._order.at_least((block.size << ADDRESS_BITS | block.address) + 1)
        return self._by_key[key] if key >= 0 else None

    def largest(self) -> Block | None:
        """The largest free block."""
        key = self._order.largest()
        return self._by_key[key] if key >= 0 else None

    def free_blocks(self) -> list[Block]:
        """All free blocks, smallest first."""
        return [self._by_key[key] for key in self._order]


def link(block: Block, before: Block | None, after: Block | None) -> None:
    """Put a block between two neighbours of its segment."""
    block.prev, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.prev = block
