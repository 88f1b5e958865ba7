"""What torch counts, under the names of `torch.cuda.memory_stats()`.

Source: pytorch `c10/core/CachingDeviceAllocator.h` (`DeviceStats`) and where `CUDACachingAllocator.cpp` raises and lowers
each.
"""

from __future__ import annotations


class Counter:
    """A number with its peak and the sum of all that was added."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.total = 0

    def add(self, amount: int) -> None:
        """Raise it, or lower it by a negative amount."""
        current = self.current + amount
        self.current = current
        if amount > 0:
            self.total += amount
            self.peak = max(self.peak, current)

    def reset_peak(self) -> None:
        """Let the peak start again from what is there now."""
        self.peak = self.current


class PoolCounter:
    """A counter for everything, one for the small pool and one for the large."""

    __slots__ = ("all", "large_pool", "small_pool")

    def __init__(self) -> None:
        self.all = Counter()
        self.small_pool = Counter()
        self.large_pool = Counter()

    def add(self, amount: int, *, small: bool) -> None:
        """Raise (or lower) the sum and the pool's own: the busiest lines of a replay, hence written out."""
        every, own = self.all, self.small_pool if small else self.large_pool
        every.current = whole = every.current + amount
        own.current = part = own.current + amount
        if amount > 0:
            every.total += amount
            own.total += amount
            if whole > every.peak:  # noqa: PLR1730 - a comparison costs a third of a call of max
                every.peak = whole
            if part > own.peak:  # noqa: PLR1730
                own.peak = part

    def parts(self) -> tuple[tuple[str, Counter], ...]:
        """The three with torch's names."""
        return (("all", self.all), ("small_pool", self.small_pool), ("large_pool", self.large_pool))


class AllocatorStats:
    """Counts (`allocation`, `segment`, `active`, `inactive_split`) and bytes, each current and peak.

    `allocated_bytes` counts whole blocks, so it includes what could not be split off; `requested_bytes` does not.
    `active` adds blocks whose free waits for another stream. Expandable segments have no `segment` and no `inactive_split`.
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
        """As `torch.cuda.reset_peak_memory_stats()`."""
        for value in vars(self).values():
            if isinstance(value, PoolCounter):
                for _, counter in value.parts():
                    counter.reset_peak()
            elif isinstance(value, Counter):
                value.reset_peak()

    def as_dict(self) -> dict[str, int]:
        """Flat, as `torch.cuda.memory_stats()` gives it: `allocated_bytes.all.peak` and so on."""
        flat: dict[str, int] = {}
        for name, value in vars(self).items():
            if isinstance(value, PoolCounter):
                for part, counter in value.parts():
                    flat.update(_fields(f"{name}.{part}", counter))
            elif isinstance(value, Counter):
                flat.update(_fields(name, value))
            else:
                flat[name] = value
        return flat


def _fields(name: str, counter: Counter) -> dict[str, int]:
    return {
        f"{name}.current": counter.current,
        f"{name}.peak": counter.peak,
        f"{name}.allocated": counter.total,
        f"{name}.freed": counter.total - counter.current,
    }
