"""The statistics of torch's allocator, under the names of `torch.cuda.memory_stats()`.

Source: pytorch `c10/core/CachingDeviceAllocator.h` (`DeviceStats`), and the places in
`CUDACachingAllocator.cpp` that change each of them.
"""

from __future__ import annotations


class Counter:
    """A number with its peak and the sum of all increases."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.total = 0

    def add(self, amount: int) -> None:
        """Increase the counter, or decrease it by a negative amount."""
        self.current += amount
        if amount > 0:
            self.total += amount
            self.peak = max(self.peak, self.current)

    def reset_peak(self) -> None:
        """Set the peak to the current value."""
        self.peak = self.current

    def as_dict(self, name: str) -> dict[str, int]:
        """Return the four values that torch reports, under `name`."""
        return {
            f"{name}.current": self.current,
            f"{name}.peak": self.peak,
            f"{name}.allocated": self.total,
            f"{name}.freed": self.total - self.current,
        }


class PoolCounter:
    """A counter over both pools, one for the small pool and one for the large."""

    __slots__ = ("all", "large_pool", "small_pool")

    def __init__(self) -> None:
        self.all = Counter()
        self.small_pool = Counter()
        self.large_pool = Counter()

    def add(self, amount: int, *, small: bool) -> None:
        """Change the sum and the counter of one pool."""
        # The busiest lines of a replay: two calls of `Counter.add` would take twice as long.
        both, pool = self.all, self.small_pool if small else self.large_pool
        both.current = sum_ = both.current + amount
        pool.current = part = pool.current + amount
        if amount > 0:
            both.total += amount
            pool.total += amount
            if sum_ > both.peak:  # noqa: PLR1730 - a comparison costs a third of a call of max
                both.peak = sum_
            if part > pool.peak:  # noqa: PLR1730
                pool.peak = part

    def by_name(self) -> dict[str, Counter]:
        """Return the three counters by torch's names."""
        return {"all": self.all, "small_pool": self.small_pool, "large_pool": self.large_pool}


class AllocatorStats:
    """Counts (`allocation`, `segment`, `active`, `inactive_split`) and bytes.

    `allocated_bytes` counts whole blocks, with the rest that could not be split off;
    `requested_bytes` doesn't. `active` includes blocks whose free waits for another stream.
    Expandable segments don't count as `segment`, nor their blocks as `inactive_split`.
    """

    def __init__(self) -> None:
        self.allocation = PoolCounter()
        self.segment = PoolCounter()
        self.active = PoolCounter()
        self.inactive_split = PoolCounter()
        self.allocated_bytes = PoolCounter()
        self.reserved_bytes = PoolCounter()
        self.active_bytes = PoolCounter()
        self.inactive_split_bytes = PoolCounter()
        self.requested_bytes = PoolCounter()
        self.oversize_allocations = Counter()
        self.oversize_segments = Counter()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0

    def reset_peak(self) -> None:
        """Reset all peaks, as `torch.cuda.reset_peak_memory_stats()` does."""
        for _, counter in self._named():
            if isinstance(counter, Counter):
                counter.reset_peak()

    def as_dict(self) -> dict[str, int]:
        """Return the flat dict of `torch.cuda.memory_stats()`: `allocated_bytes.all.peak`, ..."""
        flat: dict[str, int] = {}
        for name, counter in self._named():
            flat.update(counter.as_dict(name) if isinstance(counter, Counter) else {name: counter})
        return flat

    def _named(self) -> list[tuple[str, Counter | int]]:
        named: list[tuple[str, Counter | int]] = []
        for name, value in vars(self).items():
            if isinstance(value, PoolCounter):
                named += [(f"{name}.{pool}", counter) for pool, counter in value.by_name().items()]
            else:
                named.append((name, value))
        return named
