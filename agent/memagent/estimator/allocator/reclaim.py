"""Return cached memory to the device: on request, when it is full, or by garbage collection.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp`, `release_block`, `release_blocks`,
`release_available_cached_blocks` and `garbage_collect_cached_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping

from memagent.estimator.allocator.blocks import Block, Pool
from memagent.estimator.allocator.config import UNLIMITED, AllocatorConfig
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.device import Device, ExpandableSegments


class Reclaim:
    """The ways in which an allocator releases segments."""

    def __init__(
        self,
        config: AllocatorConfig,
        device: Device,
        stats: AllocatorStats,
        expandable: ExpandableSegments,
        pools: Mapping[int, Pool],
    ) -> None:
        self._config = config
        self._device = device
        self._stats = stats
        self._expandable = expandable
        self._pools = pools

    def release_segment(self, block: Block) -> None:
        """Release a segment that consists of one free block."""
        pool, size = block.pool, block.size
        pool.remove(block)
        self._device.release_segment(block.address, size)
        self._stats.segment.add(-1, small=pool.small)
        self._stats.reserved_bytes.add(-size, small=pool.small)
        self._stats.num_device_free += 1
        if size >= self._config.max_split_bytes:
            self._stats.oversize_segments.add(-1)

    def release_idle(self, pool: Pool) -> None:
        """Release every segment, or page of an expandable one, without an allocated block."""
        expandable = []
        for block in pool.free_blocks():
            if block.expandable is not None:
                expandable.append(block)
            elif not block.is_split():
                self.release_segment(block)
        # after the loop: shrinking changes the pool's free blocks
        for block in expandable:
            self._expandable.shrink(block)

    def release_oversize(self, pool: Pool, size: int) -> bool:
        """Release one cached unsplittable block for `size` bytes, or else the largest ones.

        Returns whether that was enough.
        """
        limit = self._config.max_split_bytes
        if limit >= UNLIMITED:
            return False
        # at least an oversize block, since smaller ones are never released this way
        target = max(size, limit)
        fit = pool.best_fit(target)
        if fit is not None and fit.expandable is None:
            self.release_segment(fit)
            return True
        released = 0
        for block in reversed(pool.free_blocks()):
            if released >= target or block.size < limit:
                break
            if block.expandable is None:
                released += block.size
                self.release_segment(block)
        return released >= target

    def collect_garbage(self, allowed: int) -> None:
        """Release old large segments until reserved memory is below the threshold.

        A segment is old if it was idle for at least the average number of searches. The average is
        taken again after each round, until enough is released or no old segment remains.
        """
        threshold = int(self._config.garbage_collection_threshold * allowed)
        target = self._stats.reserved_bytes.all.current - threshold
        pools = [pool for pool in self._pools.values() if not pool.small]
        idle = [block for pool in pools for block in pool.free_blocks() if not block.is_split()]
        total = sum(map(_age, idle))
        while target > 0 and idle:
            average = total / len(idle)
            old = [block for block in idle if _age(block) >= average and block.expandable is None]
            if not old:
                return
            idle = [b for b in idle if _age(b) < average or b.expandable is not None]
            for block in old:
                target -= block.size
                total -= _age(block)
                self.release_segment(block)


def _age(block: Block) -> int:
    return block.pool.searches - block.gc_base
