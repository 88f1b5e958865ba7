"""The memory below the allocator: the device, and expandable segments mapped page by page.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp`, `find_expandable_block`, `map_block`,
`try_allocate_expandable_block`, `unmap_block` and `ExpandableSegment`. The steps of `grow`:

1. Find the lowest unmapped block that has enough addresses together with a free block just before
   it and the unmapped space behind it; otherwise reserve a new range.
2. Map whole pages from its start until the block is large enough, and merge mapped free neighbors.
3. If the device is full, give up. Pages mapped in an earlier round of 2 stay mapped and cached.
"""

from __future__ import annotations

from bisect import insort

from memagent.estimator.allocator.blocks import AddressRange, Block, Pool, link
from memagent.estimator.allocator.counters import AllocatorStats

_ALIGNMENT = 2 * 2**20
_DEFAULT_ADDRESS_SPACE = 2**44
"""Bytes of an expandable segment's range when the device's size is unknown."""


class Device:
    """The memory that `cudaMalloc` and `cuMemCreate` can still return. Sizes are bytes.

    `total_bytes` is the device's memory; None means unlimited. `outside_bytes` of it are in use by
    the CUDA context, libraries and other processes. The driver's choice of addresses isn't public,
    and the allocator prefers low ones. Here each new segment lies above all earlier ones, as in a
    process that has the device to itself.
    """

    __slots__ = ("_next_address", "limit", "total_bytes", "used")

    def __init__(self, total_bytes: int | None, outside_bytes: int = 0) -> None:
        self.total_bytes = total_bytes
        self.limit = None if total_bytes is None else max(total_bytes - outside_bytes, 0)
        self.used = 0
        self._next_address = 0

    def free_bytes(self) -> int | None:
        """Return the free bytes as `cudaMemGetInfo` reports them; None if unlimited."""
        return None if self.limit is None else self.limit - self.used

    def allocate(self, size: int) -> bool:
        """Allocate memory; return False if there isn't enough."""
        if self.limit is not None and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """Return memory to the device."""
        self.used -= size

    def allocate_segment(self, size: int) -> int | None:
        """Allocate a segment and return its address; None if the device is full."""
        return self.place(size, expandable=False) if self.allocate(size) else None

    def release_segment(self, address: int, size: int) -> None:  # for subclasses
        """Return a segment to the device."""
        self.release(size)

    def place(self, size: int, *, expandable: bool) -> int:  # for subclasses
        """Choose the address of a segment, or of an expandable segment's range."""
        address = self._next_address
        self.keep_clear_of(address, size)
        return address

    def keep_clear_of(self, address: int, size: int) -> None:
        """Place all later segments above these addresses."""
        end = (address + size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._next_address = max(self._next_address, end)

    def address_space(self, page: int) -> int:
        """Return the size of an expandable segment's range: the device plus an eighth of it."""
        total = self.total_bytes
        size = _DEFAULT_ADDRESS_SPACE if total is None else total + total // 8
        return (size + page - 1) // page * page


class ExpandableSegments:
    """Maps and unmaps the pages of all expandable segments of one allocator."""

    def __init__(self, device: Device, stats: AllocatorStats) -> None:
        self._device = device
        self._stats = stats
        self.ranges: list[AddressRange] = []

    def grow(self, pool: Pool, size: int, page: int) -> Block | None:
        """Return a block of at least `size` bytes, not in the pool; None if memory is full."""
        block = self._find(pool, size) or self._reserve(pool, page)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            unmapped = block.next
            if unmapped is None or not self._map(unmapped, min(size - block.size, unmapped.size)):
                return None
            # mapping merges it with the block before, and keeps this object
            block = unmapped
        pool.remove(block)
        return block

    def shrink(self, block: Block) -> None:
        """Release the pages inside a free block, and the range once it has no memory left."""
        self._unmap(block)
        # the whole range is one unmapped block
        if block.prev is None and block.next is None and block.expandable is not None:
            block.pool.unmapped.remove(block)
            self.ranges.remove(block.expandable)

    def _find(self, pool: Pool, size: int) -> Block | None:
        for unmapped in pool.unmapped:
            before = unmapped.prev
            first = before if before is not None and not before.busy else unmapped
            if _has_room(first, size):
                return first
        return None

    def _reserve(self, pool: Pool, page: int) -> Block:
        size = self._device.address_space(page)
        addresses = AddressRange(self._device.place(size, expandable=True), size, page)
        self.ranges.append(addresses)
        block = Block(addresses.start, size, pool, mapped=False, expandable=addresses)
        insert_unmapped(pool, block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        pool, addresses = block.pool, block.expandable
        assert addresses is not None
        mapped = (size + addresses.page - 1) // addresses.page * addresses.page
        if not self._device.allocate(mapped):
            return False
        pool.unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            start, rest_size = block.address + mapped, block.size - mapped
            rest = Block(start, rest_size, pool, mapped=False, expandable=addresses)
            link(rest, block, block.next)
            block.size = mapped
            insert_unmapped(pool, rest)
        merge_free(block, block.prev)
        merge_free(block, block.next)
        pool.add(block)
        self._stats.reserved_bytes.add(mapped, small=pool.small)
        self._stats.num_device_alloc += 1
        return True

    def _unmap(self, block: Block) -> None:
        pool, addresses = block.pool, block.expandable
        assert addresses is not None
        page = addresses.page
        offset = block.address - addresses.start
        # Only whole pages can be unmapped. The ends of the block stay mapped as free blocks.
        begin = (offset + page - 1) // page * page
        end = (offset + block.size) // page * page
        if begin >= end:
            return
        pool.remove(block)
        if begin > offset:
            before = Block(block.address, begin - offset, pool, expandable=addresses)
            link(before, block.prev, block)
            pool.add(before)
        if end < offset + block.size:
            after_size = offset + block.size - end
            after = Block(addresses.start + end, after_size, pool, expandable=addresses)
            link(after, block, block.next)
            pool.add(after)
        block.address = addresses.start + begin
        block.size = end - begin
        block.mapped = False
        merge_free(block, block.prev)
        merge_free(block, block.next)
        insert_unmapped(pool, block)
        self._device.release(end - begin)
        self._stats.reserved_bytes.add(begin - end, small=pool.small)
        self._stats.num_device_free += 1


def merge_free(block: Block, other: Block | None) -> int:
    """Merge a free neighbor into `block` (`try_merge_blocks`) and return the bytes gained.

    Returns 0 if the neighbor is in use, or if only one of the two has memory behind it.
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


def insert_unmapped(pool: Pool, block: Block) -> None:
    """Add a block without memory to its pool, by address."""
    insort(pool.unmapped, block, key=lambda unmapped: unmapped.address)


def _has_room(block: Block | None, size: int) -> bool:
    # free blocks and unmapped space in turn count, mapped or not
    while size > 0 and block is not None and not block.busy:
        size -= block.size
        block = block.next
    return size <= 0
