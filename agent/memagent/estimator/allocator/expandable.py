"""Expandable segments: one range of addresses for each stream and pool, backed page by page as it is needed.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp`, `find_expandable_block`, `map_block`, `try_allocate_expandable_block`,
`unmap_block` and `ExpandableSegment`. The numbered steps of `grow`:

1. Look for the lowest unmapped block that, with a free block just before it and what follows, has enough addresses;
   else reserve a new range.
2. Map whole pages from its start until the block is large enough; neighbours that are mapped and free melt into it.
3. If the device has no more, give up; pages that an earlier round of 2 mapped stay mapped and cached.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable

from memagent.estimator.allocator.blocks import AddressRange, Block, Piece, Pool, link
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.device import Device

Observer = Callable[[str, int, int], None]
"""Told of each change below the allocator: its word in torch's traces, the address and the bytes."""


class ExpandableSegments:
    """Maps and unmaps the pages of all expandable segments of one allocator."""

    def __init__(self, device: Device, stats: AllocatorStats, observer: Observer | None) -> None:
        self._device = device
        self._stats = stats
        self._observer = observer
        self.ranges: list[AddressRange] = []

    def grow(self, pool: Pool, size: int, page: int) -> Block | None:
        """A block of at least `size` bytes, taken out of the pool; None when the device has no memory for it."""
        block = self._find(pool, size) or self._reserve(pool, page)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            if following is None or not self._map(
                following, min(size - block.size, following.size)
            ):
                return None
            block = following
        pool.remove(block)
        return block

    def shrink(self, block: Block) -> None:
        """Give back the pages that lie wholly inside a free block; drop the range when nothing of it is left."""
        self._unmap(block)
        if block.prev is None and block.next is None and block.expandable is not None:
            block.pool.unmapped.remove(block)
            self.ranges.remove(block.expandable)

    def chain(self, pieces: Iterable[Piece], pool: Pool, page: int) -> list[Block]:
        """Blocks for a segment taken over as it stands, with the addresses it can still grow to behind them."""
        known = list(pieces)
        start, end = known[0].address, known[-1].address + known[-1].size
        size = max(self._device.address_space(page), end - start + page)
        whole = AddressRange(start, size, page)
        self.ranges.append(whole)
        chain = [
            one.block(pool, whole) for one in [*known, Piece(end, start + size - end, mapped=False)]
        ]
        for block in chain:
            if not block.mapped:
                _insert_unmapped(pool, block)
        return chain

    def _find(self, pool: Pool, size: int) -> Block | None:
        for unmapped in pool.unmapped:
            before = unmapped.prev
            first = before if before is not None and not before.busy else unmapped
            if _room_from(first, size):
                return first
        return None

    def _reserve(self, pool: Pool, page: int) -> Block:
        size = self._device.address_space(page)
        whole = AddressRange(self._device.place(size, expandable=True), size, page)
        self.ranges.append(whole)
        block = Block(whole.start, size, pool, mapped=False, expandable=whole)
        _insert_unmapped(pool, block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        pool, whole = block.pool, block.expandable
        assert whole is not None
        mapped = (size + whole.page - 1) // whole.page * whole.page
        if not self._device.take(mapped):
            return False
        address = block.address
        pool.unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(
                address + mapped, block.size - mapped, pool, mapped=False, expandable=whole
            )
            link(rest, block, block.next)
            block.size = mapped
            _insert_unmapped(pool, rest)
        merge_free(block, block.prev)
        merge_free(block, block.next)
        pool.add(block)
        self._stats.reserved_bytes.add(mapped, small=pool.small)
        self._stats.num_device_alloc += 1
        if self._observer is not None:
            self._observer("segment_map", address, mapped)
        return True

    def _unmap(self, block: Block) -> None:
        pool, whole = block.pool, block.expandable
        assert whole is not None
        page = whole.page
        offset = block.address - whole.start
        begin = (offset + page - 1) // page * page
        end = (offset + block.size) // page * page
        if begin >= end:
            return
        pool.remove(block)
        if begin > offset:
            before = Block(block.address, begin - offset, pool, expandable=whole)
            link(before, block.prev, block)
            pool.add(before)
        if end < offset + block.size:
            after = Block(whole.start + end, offset + block.size - end, pool, expandable=whole)
            link(after, block, block.next)
            pool.add(after)
        block.address, block.size, block.mapped = whole.start + begin, end - begin, False
        merge_free(block, block.prev)
        merge_free(block, block.next)
        _insert_unmapped(pool, block)
        self._device.give_back(end - begin)
        self._stats.reserved_bytes.add(begin - end, small=pool.small)
        self._stats.num_device_free += 1
        if self._observer is not None:
            self._observer("segment_unmap", whole.start + begin, end - begin)


def merge_free(block: Block, other: Block | None) -> int:
    """Let a free neighbour melt into `block` (`try_merge_blocks`); bytes gained, 0 if it may not.

    Only inside a segment, and only mapped with mapped or unmapped with unmapped.
    """
    if other is None or other.busy or other.mapped != block.mapped:
        return 0
    if other.mapped:
        other.pool.remove(other)
    else:
        other.pool.unmapped.remove(other)
    if block.prev is other:
        block.address = other.address
        block.prev = other.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.prev = block
    block.size += other.size
    return other.size


def _room_from(block: Block | None, size: int) -> bool:
    while size > 0 and block is not None and not block.busy:
        size -= block.size
        block = block.next
    return size <= 0


def _insert_unmapped(pool: Pool, block: Block) -> None:
    insort(pool.unmapped, block, key=lambda one: one.address)
