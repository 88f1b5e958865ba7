"""What `record` reads: a GPU with torch's allocator and NVML, or, to try it out, the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from benchmarks.estimator import history, truth_cpu
from benchmarks.estimator.process_memory import ProcessMemory

_MOST_EVENTS = 2_000_000


class Device(Protocol):
    """Interface of a device to the recorder. Sizes are bytes."""

    def begin(self) -> dict[str, int | None]:
        """Start the device and return the memory that takes."""

    def record_history(self) -> None: ...
    def restart_peaks(self) -> None: ...
    def peaks(self) -> dict[str, int | None]:
        """Return allocated, reserved and device peaks since the last restart, and what is outside of
        the allocator.
        """

    def save_history(self, path: Path) -> int: ...
    def counters(self) -> dict[str, int]: ...


class CudaDevice:
    """The first visible GPU."""

    def __init__(self) -> None:
        self._memory = ProcessMemory()

    def begin(self) -> dict[str, int | None]:
        context = self._memory.begin()
        return {
            "others_bytes": self._memory.others_bytes,
            "context_bytes": context,
            "is_own": self._memory.is_own,
        }

    def record_history(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=_MOST_EVENTS
        )

    def restart_peaks(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int | None]:
        torch.cuda.synchronize()
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "device": self._memory.used(),
            "outside": self._memory.outside(),
        }

    def save_history(self, path: Path) -> int:
        return history.write(path, torch.cuda.memory._snapshot())

    def counters(self) -> dict[str, int]:
        names = (
            "num_alloc_retries",
            "num_ooms",
            "segment.all.peak",
            "inactive_split_bytes.all.peak",
            "requested_bytes.all.peak",
        )
        stats = torch.cuda.memory_stats()
        return {name: int(stats.get(name, 0)) for name in names}


class CpuDevice:
    """Stand-in without a GPU: counts live storages; nothing is reserved, and there is no history."""

    def __init__(self) -> None:
        self._live = truth_cpu.LiveStorages()

    def begin(self) -> dict[str, int | None]:
        self._live.__enter__()
        return {"others_bytes": None, "context_bytes": None}

    def record_history(self) -> None:
        return None

    def restart_peaks(self) -> None:
        self._live.restart_peak()

    def peaks(self) -> dict[str, int | None]:
        return dict.fromkeys(("reserved", "device", "outside")) | {
            "allocated": self._live.peak_bytes
        }

    def save_history(self, path: Path) -> int:
        return 0

    def counters(self) -> dict[str, int]:
        return {}


def device_named(kind: str) -> Device:
    return CudaDevice() if kind == "cuda" else CpuDevice()
