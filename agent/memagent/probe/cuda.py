"""torch's caching allocator on one CUDA (or ROCm) device, by the one nested dict that C++ hands out.

`torch.cuda.memory_stats()` flattens the same dict into 120 keys at ten times the cost. Nothing here initialises CUDA, synchronises,
resets a counter that belongs to the user, or reads during graph capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memagent.probe.nvml import Nvml, open_nvml
from memagent.wire.columns import Value
from memagent.wire.messages import Device


class CudaProbe:
    """See `memagent.probe.Probe`. `torch` is the imported module; `index` a device that the process already uses."""

    columns: tuple[str, ...] = (
        "allocated_bytes",
        "reserved_bytes",
        "peak_reserved_bytes",
        "active_bytes",
        "requested_bytes",
        "inactive_split_bytes",
        "alloc_retries_total",
        "ooms_total",
        "device_used_bytes",
        "limit_bytes",
    )

    def __init__(self, torch: Any, index: int, limit_bytes: int | None = None) -> None:
        self._stats: Callable[[int], dict[str, Any]] = torch._C._cuda_memoryStats
        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
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
            limit_source="given" if limit_bytes else "per-process fraction" if fraction < 1 else "device memory",
        )
        self._nvml: Nvml = open_nvml(self.device.id)
        self._used: int | None = None
        self._last: dict[str, Any] = self._stats(index)
        self._peak = int(self._last["allocated_bytes"]["all"]["peak"])

    def read(self) -> int:
        return int(self._read()["allocated_bytes"]["all"]["current"])

    def sample(self) -> tuple[Value, ...]:
        stats = self._read()
        reserved = stats["reserved_bytes"]["all"]
        return (
            stats["allocated_bytes"]["all"]["current"],
            reserved["current"],
            reserved["peak"],
            stats["active_bytes"]["all"]["current"],
            stats["requested_bytes"]["all"]["current"],
            stats["inactive_split_bytes"]["all"]["current"],
            stats["num_alloc_retries"],
            stats["num_ooms"],
            self._used,
            self._limit,
        )

    def peak(self, seen: int) -> int:
        """Exact whenever the step raised the process's peak; else the highest reading, since the counter is not ours to reset."""
        peak = int(self._last["allocated_bytes"]["all"]["peak"])
        raised, self._peak = peak > self._peak, peak
        return max(seen, peak) if raised else seen

    def refresh(self) -> None:
        self._used = self._nvml.used_bytes()

    def close(self) -> None:
        return None

    def _read(self) -> dict[str, Any]:
        if not self._capturing():
            self._last = self._stats(self._index)
        return self._last


def _uuid(properties: Any, index: int) -> str:
    uuid = getattr(properties, "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else f"cuda:{index}"


def _memory_fraction(torch: Any, index: int) -> float:
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return float(read(index)) if read is not None else 1.0
