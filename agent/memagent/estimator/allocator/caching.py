"""torch's CUDA caching allocator, step for step, without a GPU.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp`, `DeviceCachingAllocator`; versions and simplifications: docs/allocator.md.
The numbered steps of `malloc`:

1. Round the size up: 512 bytes, or a division between powers of two.
2. Choose the pool: small up to 1 MiB, else large; blocks never leave their stream or pool.
3. Take the smallest free block that fits, the lowest address of equals; blocks of `max_split` and more only for requests
   of that size, and then only if not much too large. Expandable segments prefer blocks that cannot grow.
4. Else, above the garbage collection threshold, give back large cached segments that were not used for long.
5. Else ask the device for a segment; if it refuses, give back cached blocks of `max_split` and more and ask again; if
   that does not help, give back every segment that is wholly free and ask a last time (a retry).
6. Split off what is too much: in the small pool from 512 bytes, in the large pool only more than 1 MiB, in expandable
   segments from 512 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

from memagent.errors import EstimateError
from memagent.estimator.allocator.blocks import Block, Piece, Pool, link
from memagent.estimator.allocator.config import UNLIMITED, AllocatorConfig
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.device import Device, Place
from memagent.estimator.allocator.expandable import ExpandableSegments, Observer, merge_free
from memagent.estimator.allocator.reclaim import Reclaim
from memagent.estimator.allocator.rules import (
    MIN_BLOCK,
    SMALL_SIZE,
    page_size,
    round_size,
    segment_size,
)
from memagent.units import format_bytes


class SimulatedOutOfMemory(EstimateError):  # noqa: N818 - named after torch's OutOfMemoryError
    """The simulated device has no memory for a request, after all that torch tries. Sizes in bytes."""

    def __init__(
        self, size: int, segment: int, allocated: int, reserved: int, free: int | None
    ) -> None:
        super().__init__(
            f"a request of {format_bytes(size)} needs a segment of {format_bytes(segment)}, and the device has "
            f"{format_bytes(free)} left; {format_bytes(allocated)} are allocated, {format_bytes(reserved)} reserved"
        )
        self.size, self.segment, self.allocated, self.reserved, self.free = (
            size,
            segment,
            allocated,
            reserved,
            free,
        )


class CachingAllocator:
    """One device's allocator. Sizes are bytes; blocks are named by the number `malloc` gives.

    `total_bytes`: memory of the device, None for no end; `outside_bytes` of it belong to others (context, libraries).
    `place` and `observer` serve recorded histories: where segments lie, and who hears of segment changes.
    """

    def __init__(
        self,
        config: AllocatorConfig | None = None,
        total_bytes: int | None = None,
        *,
        outside_bytes: int = 0,
        place: Place | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.config = config or AllocatorConfig()
        self.stats = AllocatorStats()
        self._device = Device(total_bytes, outside_bytes, place)
        self._observer = observer
        self._expandable = ExpandableSegments(self._device, self.stats, observer)
        self._pools: dict[int, Pool] = {}
        self._blocks: dict[int, Block] = {}
        self._pending: dict[int, Block] = {}
        self.on_miss: Callable[[], None] | None = (
            None  # called when no cached block serves a request
        )
        self._last_id = 0
        self._exact_rounding = not self.config.roundup_power2_divisions
        self._reclaim = Reclaim(
            self.config, self._device, self.stats, self._expandable, self._pools, observer
        )
        fraction = self.config.memory_fraction
        self._allowed = (
            None if fraction is None or total_bytes is None else int(fraction * total_bytes)
        )
        self._collects = self._allowed is not None and self.config.garbage_collection_threshold > 0

    # Using it

    def malloc(self, size: int, stream: int = 0) -> int:
        """Allocate `size` bytes on a stream; the block's number.

        Raises SimulatedOutOfMemory as torch would, EstimateError for a size below one (torch never asks for nothing).
        """
        if size < 1:
            raise EstimateError(f"{size} bytes cannot be allocated: a block has at least one")
        rounded = (size + 511) & -512 if self._exact_rounding else round_size(size, self.config)
        small = rounded <= SMALL_SIZE
        pool = self._pool(stream, small=small)
        block = self._cached(pool, rounded) or self._from_device(pool, rounded, size)
        rest = block.size - rounded
        if rest and (
            rest >= MIN_BLOCK
            if small or self.config.expandable_segments
            else rest > SMALL_SIZE and rounded < self.config.max_split_bytes
        ):
            block = self._split(block, rounded)
        elif block.expandable is None and block.is_split():
            self.stats.inactive_split_bytes.add(-block.size, small=small)
            self.stats.inactive_split.add(-1, small=small)
        return self._hand_out(block, size)

    def free(self, block: int) -> None:
        """Free a block that no other stream uses. Raises EstimateError for a number that is not allocated."""
        self.request_free(block)
        self.complete_free(block)

    def request_free(self, block: int) -> None:
        """The owner lets go; until `complete_free` the memory awaits other streams (`record_stream`) and is not reused."""
        held = self._blocks.pop(block, None)
        if held is None:
            raise EstimateError(
                f"block {block} is not allocated: it was freed already, or never handed out"
            )
        held.allocated = False
        self._pending[block] = held
        small = held.pool.small
        self.stats.allocation.add(-1, small=small)
        self.stats.allocated_bytes.add(-held.size, small=small)
        if held.size >= self.config.max_split_bytes:
            self.stats.oversize_allocations.add(-1)

    def complete_free(self, block: int) -> None:
        """No stream uses the block any more; does nothing if the allocator found that out by itself before."""
        held = self._pending.pop(block, None)
        if held is not None:
            self._recycle(held)

    def empty_cache(self) -> None:
        """Give back every segment, or page of an expandable one, in which nothing is allocated."""
        self.stats.num_sync_all_streams += 1
        for block in list(self._pending):
            self.complete_free(block)
        for pool in sorted(self._pools.values(), key=lambda one: one.small):
            self._reclaim.idle_segments(pool)

    def limit(self, size: int | None) -> None:
        """From now on the device has `size` bytes for this allocator, or no end; a fraction of it counts no more."""
        self._device.limit = size
        self._allowed = None
        self._collects = False

    def release(self, addresses: Collection[int]) -> None:
        """Give back the cached segments at these addresses, where nothing in them is allocated."""
        for pool in self._pools.values():
            for block in pool.free_blocks():
                if block.address in addresses and block.expandable is None and not block.is_split():
                    self._reclaim.segment(block)

    def adopt(
        self, pieces: Iterable[Piece], stream: int, *, small: bool, expandable: bool
    ) -> dict[int, int]:
        """Take over a segment as it stands, from its first piece to its last; the numbers of its blocks by address.

        For states that were not reached here, as the beginning of a recorded history.
        """
        pool = self._pool(stream, small=small)
        if expandable:
            chain = self._expandable.chain(pieces, pool, page_size(small=small, config=self.config))
        else:
            chain = [one.block(pool) for one in pieces]
        for before, after in pairwise(chain):
            link(after, before, None)
        size = sum(block.size for block in chain if block.mapped)
        self._device.take(size)
        self.stats.reserved_bytes.add(size, small=small)
        if not expandable:
            self.stats.segment.add(1, small=small)
            if self._observer is not None:
                self._observer("segment_alloc", chain[0].address, size)
        return {block.address: number for block in chain if (number := self._adopt(block))}

    def reset_peak(self) -> None:
        """Let all peaks start again from what is there now."""
        self.stats.reset_peak()

    # Looking at it

    @property
    def allocated(self) -> int:
        """Bytes of blocks in use, as `torch.cuda.memory_allocated()`."""
        return self.stats.allocated_bytes.all.current

    @property
    def reserved(self) -> int:
        """Bytes held from the device, as `torch.cuda.memory_reserved()`."""
        return self.stats.reserved_bytes.all.current

    @property
    def peak_allocated(self) -> int:
        """As `torch.cuda.max_memory_allocated()`."""
        return self.stats.allocated_bytes.all.peak

    @property
    def peak_reserved(self) -> int:
        """As `torch.cuda.max_memory_reserved()`."""
        return self.stats.reserved_bytes.all.peak

    def address(self, block: int) -> int:
        """Where an allocated block lies."""
        return self._blocks[block].address

    def has_cached(self, size: int, stream: int = 0) -> bool:
        """Whether a request would be served from the cache, without asking the device."""
        rounded = round_size(size, self.config)
        return self._search(self._pool(stream, small=rounded <= SMALL_SIZE), rounded) is not None

    def block_size(self, block: int) -> int:
        """Bytes of an allocated block, rounding and what could not be split off included."""
        return self._blocks[block].size

    def all_blocks(self) -> list[Block]:
        """Every block with memory behind it, by address."""
        found = [*self._blocks.values(), *self._pending.values()]
        for pool in self._pools.values():
            found.extend(pool.free_blocks())
        return sorted(found, key=lambda block: block.address)

    # The steps

    def _pool(self, stream: int, *, small: bool) -> Pool:
        key = stream << 1 | small
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(stream, small=small)
        return pool

    def _cached(self, pool: Pool, size: int) -> Block | None:
        if self._collects:
            for one in self._pools.values():  # torch counts searches by pool size, over all streams
                if one.small == pool.small:
                    one.searches += 1
        block = self._search(pool, size)
        if block is not None:
            pool.remove(block)
        return block

    def _search(self, pool: Pool, size: int) -> Block | None:
        block = pool.best_fit(size)
        if block is None:
            return None
        if block.expandable is not None:
            block = _least_expandable(pool, block)
        limit = self.config.max_split_bytes
        if limit < UNLIMITED:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.config.max_non_split_rounding_bytes:
                return None
        return block

    def _from_device(self, pool: Pool, size: int, requested: int) -> Block:
        if self.on_miss is not None:
            self.on_miss()
        if self._collects:
            self._reclaim.old_segments(self._allowed or 0)
        block = self._new_block(pool, size)
        if block is None and self._reclaim.oversize(pool, size):
            block = self._new_block(pool, size)
        if block is None:
            self.empty_cache()
            self.stats.num_alloc_retries += 1
            block = self._new_block(pool, size)
        if block is None:
            self.stats.num_ooms += 1
            segment = segment_size(size, self.config)
            raise SimulatedOutOfMemory(
                requested, segment, self.allocated, self.reserved, self._device.free_bytes()
            )
        return block

    def _new_block(self, pool: Pool, size: int) -> Block | None:
        wanted = segment_size(size, self.config)
        if self._allowed is not None and self.reserved + wanted > self._allowed:
            return None
        if self.config.expandable_segments:
            return self._expandable.grow(
                pool, size, page_size(small=pool.small, config=self.config)
            )
        if not self._device.take(wanted):
            return None
        block = Block(self._device.place(wanted, expandable=False), wanted, pool)
        self.stats.segment.add(1, small=pool.small)
        self.stats.reserved_bytes.add(wanted, small=pool.small)
        self.stats.num_device_alloc += 1
        if wanted >= self.config.max_split_bytes:
            self.stats.oversize_segments.add(1)
        if self._observer is not None:
            self._observer("segment_alloc", block.address, wanted)
        return block

    def _split(self, rest: Block, size: int) -> Block:
        """The first `size` bytes of a block as one of its own; the rest stays free."""
        pool = rest.pool
        already_split = rest.is_split()
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
            if already_split:
                self.stats.inactive_split_bytes.add(-size, small=pool.small)
            else:
                self.stats.inactive_split_bytes.add(rest.size, small=pool.small)
                self.stats.inactive_split.add(1, small=pool.small)
        return block

    def _hand_out(self, block: Block, requested: int) -> int:
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

    def _recycle(self, block: Block) -> None:
        """A block returns to its pool and melts with free neighbours (`free_block`)."""
        stats, small = self.stats, block.pool.small
        stats.active.add(-1, small=small)
        stats.active_bytes.add(-block.size, small=small)
        stats.requested_bytes.add(-block.requested, small=small)
        block.busy = False
        block.requested = 0
        count = size = 0
        for neighbour in (block.prev, block.next):
            gained = merge_free(block, neighbour)
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

    def _adopt(self, block: Block) -> int:
        """Its number if it is given out, 0 if it is free or has no memory."""
        if not block.mapped:
            return 0
        if block.requested:
            pending = not block.allocated
            number = self._hand_out(block, block.requested)
            if pending:
                self.request_free(number)
            return number
        block.pool.add(block)
        if block.expandable is None and block.is_split():
            self.stats.inactive_split.add(1, small=block.pool.small)
            self.stats.inactive_split_bytes.add(block.size, small=block.pool.small)
        return 0


def _least_expandable(pool: Pool, block: Block) -> Block:
    """In expandable segments a block counts as large as it can grow: step on while the next one can grow to less."""
    following = pool.following(block)
    while (
        block.expandable is not None and following is not None and _reach(following) < _reach(block)
    ):
        block, following = following, pool.following(following)
    return block


def _reach(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)
