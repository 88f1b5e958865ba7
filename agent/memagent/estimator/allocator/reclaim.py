"""Cached memory goes back to the device: when told to, when it is full, or when too much was cached for too long.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp`, `release_block`, `release_blocks`, `release_available_cached_blocks`
and `garbage_collect_cached_blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping

from memagent.estimator.allocator.blocks import Block, Pool
from memagent.estimator.allocator.config import UNLIMITED, AllocatorConfig
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.device import Device
from memagent.estimator.allocator.expandable import ExpandableSegments, Observer


class Reclaim:
    """The ways in which an allocator gives segments back."""

    def __init__(
        self,
        config: AllocatorConfig,
        device: Device,
        stats: AllocatorStats,
        expandable: ExpandableSegments,
        pools: Mapping[int, Pool],
        observer: Observer | None,
    ) -> None:
        self._config = config
        self._device = device
        self._stats = stats
        self._expandable = expandable
        self._pools = pools
        self._observer = observer

    def segment(self, block: Block) -> None:
        """One segment, which is a single free block."""
        pool, size = block.pool, block.size
        pool.remove(block)
        self._device.give_back(size)
        self._stats.segment.add(-1, small=pool.small)
        self._stats.reserved_bytes.add(-size, small=pool.small)
        self._stats.num_device_free += 1
        if size >= self._config.max_split_bytes:
            self._stats.oversize_segments.add(-1)
        if self._observer is not None:
            self._observer("segment_free", block.address, size)

    def idle_segments(self, pool: Pool) -> None:
        """Every segment of a pool in which nothing is given out, and every such page of the expandable ones."""
        growing = []
        for block in pool.free_blocks():
            if block.expandable is not None:
                growing.append(block)
            elif not block.is_split():
                self.segment(block)
        for block in growing:
            self._expandable.shrink(block)

    def oversize(self, pool: Pool, size: int) -> bool:
        """One cached block large enough for `size` and too large to be split, or else the largest of that kind.

        Tells whether that was enough.
        """
        limit = self._config.max_split_bytes
        if limit >= UNLIMITED:
            return False
        target = max(size, limit)
        one = pool.best_fit(target)
        if one is not None and one.expandable is None:
            self.segment(one)
            return True
        released = 0
        for block in reversed(pool.free_blocks()):
            if released >= target or block.size < limit:
                break
            if block.expandable is None:
                released += block.size
                self.segment(block)
        return released >= target

    def old_segments(self, allowed: int) -> None:
        """Above the threshold: large segments that were idle for at least the average number of searches, again and
        again until enough is given back or nothing is left."""
        target = self._stats.reserved_bytes.all.current - int(
            self._config.garbage_collection_threshold * allowed
        )
        pools = [pool for pool in self._pools.values() if not pool.small]
        idle = [block for pool in pools for block in pool.free_blocks() if not block.is_split()]
        total = sum(map(_age, idle))
        while target > 0 and idle:
            average = total / len(idle)
            old = [block for block in idle if _age(block) >= average and block.expandable is None]
            if not old:
                return
            idle = [
                block for block in idle if _age(block) < average or block.expandable is not None
            ]
            for block in old:
                target -= block.size
                total -= _age(block)
                self.segment(block)


def _age(block: Block) -> int:
    return block.pool.searches - block.gc_base
