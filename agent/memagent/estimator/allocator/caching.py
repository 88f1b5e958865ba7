"""torch's CUDA caching allocator, step by step, without a GPU.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp`, `DeviceCachingAllocator`. docs/allocator.md has
the versions and simplifications. The numbered steps of `malloc`:

1. Round the size up: to 512 bytes, or to a division between powers of two.
2. Choose the pool: small up to 1 MiB, else large. A block never leaves its stream or pool.
3. Take the smallest free block that fits, at the lowest address. Blocks of `max_split` and more
   serve requests of that size only, and only if not much too large. Expandable segments prefer
   blocks that can't grow.
4. Otherwise, above the garbage collection threshold, release large cached segments that were idle
   for long.
5. Otherwise allocate a segment. If the device is full, release cached blocks of `max_split` and
   more and try again; then release every idle segment and try a last time (a retry).
6. Split off the rest: in the small pool and in expandable segments from 512 bytes, in the large
   pool above 1 MiB.
"""

from __future__ import annotations

from memagent.errors import EstimateError
from memagent.estimator.allocator.blocks import Block, Pool
from memagent.estimator.allocator.config import (
    MIN_BLOCK,
    SMALL_SIZE,
    UNLIMITED,
    AllocatorConfig,
    page_size,
    round_size,
    segment_size,
)
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.device import Device, ExpandableSegments, merge_free
from memagent.estimator.allocator.reclaim import Reclaim
from memagent.units import format_bytes


class SimulatedOutOfMemory(EstimateError):  # noqa: N818 - named after torch's OutOfMemoryError
    """The simulated device has no memory for a request after all retries. Sizes are bytes."""

    def __init__(
        self, size: int, segment: int, allocated: int, reserved: int, free: int | None
    ) -> None:
        super().__init__(size, segment, allocated, reserved, free)
        self.size = size
        self.segment = segment
        self.allocated = allocated
        self.reserved = reserved
        self.free = free

    def __str__(self) -> str:
        size, segment, allocated, reserved, free = map(format_bytes, self.args)
        return (
            f"a request of {size} needs a segment of {segment}, and the device has {free} left; "
            f"{allocated} are allocated, {reserved} reserved"
        )


class CachingAllocator:
    """The allocator of one device. Sizes are bytes; `malloc` returns a block's number.

    `total_bytes` is the device's memory, None for unlimited; `outside_bytes` of it belong to others
    (context, libraries). A `device` replaces both.
    """

    def __init__(
        self,
        config: AllocatorConfig | None = None,
        total_bytes: int | None = None,
        *,
        outside_bytes: int = 0,
        device: Device | None = None,
    ) -> None:
        self.config = config or AllocatorConfig()
        self.stats = AllocatorStats()
        self._device = device or Device(total_bytes, outside_bytes)
        self._expandable = ExpandableSegments(self._device, self.stats)
        self._pools: dict[int, Pool] = {}
        self._blocks: dict[int, Block] = {}
        self._pending: dict[int, Block] = {}
        self._last_id = 0
        self._rounds_to_block = not self.config.roundup_power2_divisions
        self._reclaim = Reclaim(
            self.config, self._device, self.stats, self._expandable, self._pools
        )
        total, fraction = self._device.total_bytes, self.config.memory_fraction
        self._allowed = None if fraction is None or total is None else int(fraction * total)
        self._collects_garbage = (
            self._allowed is not None and self.config.garbage_collection_threshold > 0
        )

    def malloc(self, size: int, stream: int = 0) -> int:
        """Allocate `size` bytes on a stream and return the block's number.

        Raises SimulatedOutOfMemory as torch would, and EstimateError for a size below one, which
        torch never requests.
        """
        if size < 1:
            raise EstimateError(f"can't allocate {size} bytes: a block has at least one")
        # inlined for the default settings: this line runs for each event of a replay
        rounded = (size + 511) & -512 if self._rounds_to_block else round_size(size, self.config)
        small = rounded <= SMALL_SIZE
        pool = self._pool(stream, small=small)
        block = self._take_cached(pool, rounded) or self._allocate_segment(pool, rounded, size)
        rest = block.size - rounded
        # `should_split`: a large block keeps a rest of up to 1 MiB, because requests that small are
        # served by the other pool.
        if rest and (
            rest >= MIN_BLOCK
            if small or self.config.expandable_segments
            else rest > SMALL_SIZE and rounded < self.config.max_split_bytes
        ):
            block = self._split(block, rounded)
        elif block.expandable is None and block.is_split():
            # the block was counted as the free rest of its segment
            self.stats.inactive_split_bytes.add(-block.size, small=small)
            self.stats.inactive_split.add(-1, small=small)
        return self._mark_allocated(block, size)

    def free(self, block: int) -> None:
        """Free a block that no other stream uses. Raises EstimateError for an unknown number."""
        self.request_free(block)
        self.complete_free(block)

    def request_free(self, number: int) -> None:
        """Free a block that other streams still use (`record_stream`).

        The memory can't be reused until `complete_free`.
        """
        block = self._blocks.pop(number, None)
        if block is None:
            raise EstimateError(
                f"block {number} is not allocated: it was already freed, or never returned"
            )
        block.allocated = False
        # still counted as active, as in torch, until no stream uses it
        self._pending[number] = block
        small = block.pool.small
        self.stats.allocation.add(-1, small=small)
        self.stats.allocated_bytes.add(-block.size, small=small)
        if block.size >= self.config.max_split_bytes:
            self.stats.oversize_allocations.add(-1)

    def complete_free(self, number: int) -> None:
        """Make a freed block available once no stream uses it.

        Does nothing if the allocator has completed the free itself, before a retry.
        """
        block = self._pending.pop(number, None)
        if block is not None:
            self._return_to_pool(block)

    def empty_cache(self) -> None:
        """Release every segment, or page of an expandable one, without an allocated block."""
        self.stats.num_sync_all_streams += 1
        for number in list(self._pending):
            self.complete_free(number)
        # large pools first, as in release_cached_blocks
        for pool in sorted(self._pools.values(), key=lambda pool: pool.small):
            self._reclaim.release_idle(pool)

    def reset_peak(self) -> None:
        """Reset all peaks to the current values."""
        self.stats.reset_peak()

    @property
    def allocated(self) -> int:
        """Bytes of blocks in use, as `torch.cuda.memory_allocated()` reports them."""
        return self.stats.allocated_bytes.all.current

    @property
    def reserved(self) -> int:
        """Bytes of all segments, as `torch.cuda.memory_reserved()` reports them."""
        return self.stats.reserved_bytes.all.current

    @property
    def peak_allocated(self) -> int:
        """The value of `torch.cuda.max_memory_allocated()`."""
        return self.stats.allocated_bytes.all.peak

    @property
    def peak_reserved(self) -> int:
        """The value of `torch.cuda.max_memory_reserved()`."""
        return self.stats.reserved_bytes.all.peak

    def address(self, number: int) -> int:
        """Return the address of an allocated block."""
        return self._blocks[number].address

    def block_size(self, number: int) -> int:
        """Return the bytes of an allocated block, with rounding and unsplit rest."""
        return self._blocks[number].size

    def all_blocks(self) -> list[Block]:
        """Return every block with memory behind it, by address."""
        blocks = [*self._blocks.values(), *self._pending.values()]
        for pool in self._pools.values():
            blocks.extend(pool.free_blocks())
        return sorted(blocks, key=lambda block: block.address)

    def _pool(self, stream: int, *, small: bool) -> Pool:
        key = stream << 1 | small
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(stream, small=small)
        return pool

    def _take_cached(self, pool: Pool, size: int) -> Block | None:
        if self._collects_garbage:
            # `get_free_blocks_call_count` belongs to torch's pool, which spans all streams.
            for other in self._pools.values():
                if other.small == pool.small:
                    other.searches += 1
        block = self._find_cached(pool, size)
        if block is not None:
            pool.remove(block)
        return block

    def _find_cached(self, pool: Pool, size: int) -> Block | None:
        """Find a free block by the rules of `get_free_block`."""
        block = pool.best_fit(size)
        if block is None:
            return None
        if block.expandable is not None:
            block = _least_growable(pool, block)
        limit = self.config.max_split_bytes
        if limit < UNLIMITED:
            # a small request must not take a block that is never split
            if size < limit <= block.size:
                return None
            # the rest of an oversize block can't be split off: too much of it would be wasted
            if size >= limit and block.size >= size + self.config.max_non_split_rounding_bytes:
                return None
        return block

    def _allocate_segment(self, pool: Pool, size: int, requested: int) -> Block:
        """Get memory from the device, in the order of `malloc` in CUDACachingAllocator.cpp."""
        if self._collects_garbage:
            self._reclaim.collect_garbage(self._allowed or 0)
        block = self._new_block(pool, size)
        if block is None and self._reclaim.release_oversize(pool, size):
            block = self._new_block(pool, size)
        if block is None:
            self.empty_cache()
            self.stats.num_alloc_retries += 1
            block = self._new_block(pool, size)
        if block is None:
            self.stats.num_ooms += 1
            segment = segment_size(size, self.config)
            free = self._device.free_bytes()
            raise SimulatedOutOfMemory(requested, segment, self.allocated, self.reserved, free)
        return block

    def _new_block(self, pool: Pool, size: int) -> Block | None:
        segment = segment_size(size, self.config)
        # Checked for expandable segments too, by the size that a fixed segment would have.
        if self._allowed is not None and self.reserved + segment > self._allowed:
            return None
        if self.config.expandable_segments:
            page = page_size(small=pool.small, config=self.config)
            return self._expandable.grow(pool, size, page)
        address = self._device.allocate_segment(segment)
        if address is None:
            return None
        self.stats.segment.add(1, small=pool.small)
        self.stats.reserved_bytes.add(segment, small=pool.small)
        self.stats.num_device_alloc += 1
        if segment >= self.config.max_split_bytes:
            self.stats.oversize_segments.add(1)
        return Block(address, segment, pool)

    def _split(self, rest: Block, size: int) -> Block:
        """Split the first `size` bytes off a block; the rest stays free."""
        pool = rest.pool
        was_split = rest.is_split()
        block = Block(
            rest.address, size, pool, prev=rest.prev, next=rest, expandable=rest.expandable
        )
        if block.prev is not None:
            block.prev.next = block
        rest.prev = block
        rest.address += size
        rest.size -= size
        pool.add(rest)
        if block.expandable is None:
            if was_split:
                self.stats.inactive_split_bytes.add(-size, small=pool.small)
            else:
                self.stats.inactive_split_bytes.add(rest.size, small=pool.small)
                self.stats.inactive_split.add(1, small=pool.small)
        return block

    def _mark_allocated(self, block: Block, requested: int) -> int:
        self._last_id += 1
        block.id = self._last_id
        block.requested = requested
        block.allocated = block.busy = True
        self._blocks[block.id] = block
        stats, small, size = self.stats, block.pool.small, block.size
        stats.allocation.add(1, small=small)
        stats.allocated_bytes.add(size, small=small)
        stats.active.add(1, small=small)
        stats.active_bytes.add(size, small=small)
        stats.requested_bytes.add(requested, small=small)
        if size >= self.config.max_split_bytes:
            stats.oversize_allocations.add(1)
        return block.id

    def _return_to_pool(self, block: Block) -> None:
        """Return a block to its pool and merge it with free neighbors (`free_block`)."""
        stats, small = self.stats, block.pool.small
        stats.active.add(-1, small=small)
        stats.active_bytes.add(-block.size, small=small)
        stats.requested_bytes.add(-block.requested, small=small)
        block.busy = False
        block.requested = 0
        count = size = 0
        for neighbor in (block.prev, block.next):
            gained = merge_free(block, neighbor)
            if gained:
                count -= 1
                size -= gained
        block.pool.add(block)
        if block.expandable is None:
            if block.is_split():
                count += 1
                size += block.size
            if count:
                stats.inactive_split.add(count, small=small)
            if size:
                stats.inactive_split_bytes.add(size, small=small)


def _least_growable(pool: Pool, block: Block) -> Block:
    """Step on while the next free block can grow to less (`get_free_block`).

    torch takes the size of a block in an expandable segment as the size that it can grow to.
    """
    larger = pool.next_fit(block)
    while (
        block.expandable is not None
        and larger is not None
        and _growable_size(larger) < _growable_size(block)
    ):
        block, larger = larger, pool.next_fit(larger)
    return block


def _growable_size(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)
