"""torch's caching allocator on one CUDA (or ROCm) device, by the one nested dict that C++ hands out.

`torch.cuda.memory_stats()` flattens the same dict into 120 keys at ten times the cost. Nothing here initialises CUDA, synchronises,
or touches the allocator during graph capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memagent.probe import Raw
from memagent.probe.nvml import EmptyNvml, Nvml, open_nvml
from memagent.probe.nvml_device import NvmlReading
from memagent.probe.peaks import Stats, shared_counters
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Event


class CudaProbe:
    """See `memagent.probe.Probe`. `torch` is the imported module; `index` a device that the process already uses."""

    columns: tuple[str, ...] = (
        "allocated_bytes",
        "reserved_bytes",
        "peak_reserved_bytes",
        "active_bytes",
        "requested_bytes",
        "inactive_split_bytes",
        "segments",
        "alloc_retries_total",
        "ooms_total",
        "device_allocs_total",
        "device_frees_total",
        "pinned_bytes",
        "limit_bytes",
        "device_used_bytes",
        "process_device_bytes",
        "other_processes_bytes",
        "utilization_ratio",
        "power_w",
        "temperature_c",
    )

    def __init__(self, torch: Any, index: int, limit_bytes: int | None = None) -> None:
        self._core = torch._C
        self._capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        self._index = index
        properties = torch.cuda.get_device_properties(index)
        fraction = _memory_fraction(torch, index)
        self._limit = limit_bytes or int(properties.total_memory * fraction)
        self.device = Device(
            id=_uuid(properties, index),
            kind="cuda",
            name=str(properties.name),
            index=index,
            total_bytes=int(properties.total_memory),
            limit_bytes=self._limit,
            limit_source="given"
            if limit_bytes
            else "per-process fraction"
            if fraction < 1
            else "device memory",
        )
        is_amd = getattr(torch.version, "hip", None) is not None
        self._nvml: Nvml = EmptyNvml() if is_amd else open_nvml(self.device.id)
        self._board = NvmlReading()
        self.context_bytes: int | None = None
        self._pinned: int | None = None
        self._counters = shared_counters(torch._C)
        self._counters.open()
        self._reserved_peak = 0
        self._last: Stats = torch._C._cuda_memoryStats(index)

    @property
    def limit_bytes(self) -> int | None:
        return self._limit

    def mark(self) -> Raw:
        """Exact, because the counters start anew at each mark. During graph capture the allocator is left alone and the next mark
        covers it."""
        if self._capturing():
            return 0
        allocated, reserved, self._last = self._counters.take(self._index)
        self._reserved_peak = max(self._reserved_peak, reserved)
        return allocated

    def sample(self) -> Raw:
        peak = self.mark()
        stats = self._last
        reserved = stats["reserved_bytes"]["all"]["current"]
        peak_reserved, self._reserved_peak = max(self._reserved_peak, reserved), reserved
        return (
            peak,
            stats["allocated_bytes"]["all"]["current"],
            reserved,
            peak_reserved,
            stats["active_bytes"]["all"]["current"],
            stats["requested_bytes"]["all"]["current"],
            stats["inactive_split_bytes"]["all"]["current"],
            stats["segment"]["all"]["current"],
            stats["num_alloc_retries"],
            stats["num_ooms"],
            stats.get("num_device_alloc"),
            stats.get("num_device_free"),
        )

    def peak(self, mark: Raw) -> int:
        return int(mark)

    def readings(self, sample: Raw) -> tuple[int, tuple[Value, ...]]:
        board = self._board
        return sample[0], (
            *sample[1:],
            self._pinned,
            self._limit,
            board.used_bytes,
            board.process_bytes,
            board.other_processes_bytes,
            board.utilization_ratio,
            board.power_w,
            board.temperature_c,
        )

    def used_bytes(self) -> int:
        return int(self._core._cuda_memoryStats(self._index)["allocated_bytes"]["all"]["current"])

    def peak_since_mark(self) -> int:
        """Most allocated since the last mark; the next mark tells it again."""
        return self._counters.look(self._index)

    def refresh(self) -> None:
        reserved = self._last["reserved_bytes"]["all"]["current"]
        board = self._board = self._nvml.reading()
        self.context_bytes = (
            max(0, board.process_bytes - reserved) if board.process_bytes is not None else None
        )
        self._pinned = self._pinned_bytes()

    def take_events(self) -> list[Event]:
        return self._nvml.take_events()

    def close(self) -> None:
        self._counters.close()
        self._nvml.close()

    def _pinned_bytes(self) -> int | None:
        """Page-locked host memory that torch's host allocator holds, for all devices; None where this torch doesn't count it."""
        read = getattr(self._core, "_cuda_hostMemoryStats", None)
        stats = read() if read is not None else {}
        found = stats.get("allocated_bytes", {})
        value = found.get("current", found.get("all", {}).get("current"))
        return int(value) if value is not None else None


def _uuid(properties: Any, index: int) -> str:
    uuid = getattr(properties, "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else f"cuda:{index}"


def _memory_fraction(torch: Any, index: int) -> float:
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(read(index)) if read is not None else 1.0
