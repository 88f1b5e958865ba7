"""A CUDA allocator without a GPU: `torch._C`'s functions over the counters of c10's allocator."""

from __future__ import annotations

import pytest

POOL_LIMIT = 2**20
_STATISTICS = ("allocation", "segment", "active", "inactive_split")
_BYTES = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class CountingAllocator:
    """Counts `allocate` and `free`; each statistic has the four values of c10/core/Stat.h."""

    def __init__(self) -> None:
        pools = ("all", "small_pool", "large_pool")
        self._stats = {
            name: {
                pool: dict.fromkeys(("current", "peak", "allocated", "freed"), 0) for pool in pools
            }
            for name in (*_STATISTICS, *_BYTES)
        }
        self._flat = {
            "oversize_allocations": dict.fromkeys(("current", "peak", "allocated", "freed"), 0),
            "oversize_segments": dict.fromkeys(("current", "peak", "allocated", "freed"), 0),
            "num_alloc_retries": 0,
            "num_ooms": 0,
            "num_device_alloc": 0,
            "num_device_free": 0,
            "max_split_size": -1,
            "reserved_bytes_by_private_pools": {(0, 1): 4096},
        }
        self.capturing = False
        self.reads = self.resets = 0

    def allocate(self, size: int) -> int:
        self._count("allocated_bytes", size, size)
        self._count("requested_bytes", size, size - 7)
        self._count("active_bytes", size, size)
        self._count("allocation", size, 1)
        if (
            self._stats["allocated_bytes"]["all"]["current"]
            > self._stats["reserved_bytes"]["all"]["current"]
        ):
            self._count("reserved_bytes", size, size)
            self._count("segment", size, 1)
        return size

    def free(self, size: int) -> None:
        self._count("allocated_bytes", size, -size)
        self._count("requested_bytes", size, 7 - size)
        self._count("active_bytes", size, -size)
        self._count("allocation", size, -1)

    def _count(self, name: str, size: int, amount: int) -> None:
        for pool in ("all", "small_pool" if size < POOL_LIMIT else "large_pool"):
            leaf = self._stats[name][pool]
            leaf["current"] += amount
            leaf["peak"] = max(leaf["peak"], leaf["current"])
            leaf["allocated" if amount > 0 else "freed"] += abs(amount)

    def memory_stats(self, device: int) -> dict:
        assert device == 0
        self.reads += 1
        copied = {
            name: {pool: dict(leaf) for pool, leaf in pools.items()}
            for name, pools in self._stats.items()
        }
        return copied | {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in self._flat.items()
        }

    def reset_peaks(self, device: int) -> None:
        assert device == 0
        self.resets += 1
        for leaf in [leaf for pools in self._stats.values() for leaf in pools.values()]:
            leaf["peak"] = leaf["current"]


class Properties:
    name = "counting allocator"
    total_memory = 2**30
    uuid = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def cuda_allocator(monkeypatch):
    """torch.cuda's and torch.accelerator's functions over an allocator that only counts."""
    import torch

    allocator = CountingAllocator()
    core = {
        "_cuda_memoryStats": allocator.memory_stats,
        "_cuda_resetPeakMemoryStats": allocator.reset_peaks,
        "_accelerator_getDeviceStats": allocator.memory_stats,
        "_accelerator_resetPeakStats": allocator.reset_peaks,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_cuda_isCurrentStreamCapturing": lambda: allocator.capturing,
    }
    for name, function in core.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(
        torch.cuda, "get_per_process_memory_fraction", lambda index: 1.0, raising=False
    )
    monkeypatch.setattr("memagent.probe.peaks._shared", None)
    return allocator
