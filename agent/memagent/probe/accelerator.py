"""Devices that are neither NVIDIA's nor AMD's: Intel GPUs (`torch.xpu`) and Apple's (`torch.mps`).

Nothing here initialises a device or synchronises with it: a probe is made only where parameters live on the device already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from memagent.diagnostics.console import notify_user
from memagent.probe import Raw
from memagent.probe.host_limits import physical_memory_bytes
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Event

_MPS_HIGH_WATERMARK = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
_MPS_DEFAULT_WATERMARK = 1.7
"""Of the recommended working set; MPSAllocator.h. Beyond it torch raises out-of-memory, though a Mac would go on and swap."""


class XpuProbe:
    """See `memagent.probe.Probe`. `torch` is the imported module; `index` a device that the process already uses."""

    columns: tuple[str, ...] = (
        "allocated_bytes",
        "reserved_bytes",
        "peak_reserved_bytes",
        "active_bytes",
        "requested_bytes",
        "device_used_bytes",
        "limit_bytes",
    )

    def __init__(self, torch: Any, index: int, limit_bytes: int | None = None) -> None:
        self._stats: Callable[[int], dict[str, Any]] = torch._C._xpu_memoryStats
        self._memory_info: Callable[[int], tuple[int, int]] | None = getattr(
            torch.xpu, "mem_get_info", None
        )
        self._index = index
        properties = torch.xpu.get_device_properties(index)
        total = int(properties.total_memory)
        fraction = _memory_fraction(torch, index)
        self._limit = limit_bytes or int(total * fraction)
        uuid = getattr(properties, "uuid", None)
        self.device = Device(
            id=f"xpu:{uuid}" if uuid is not None else f"xpu:{index}",
            kind="xpu",
            name=str(properties.name),
            index=index,
            total_bytes=total,
            limit_bytes=self._limit,
            limit_source="given"
            if limit_bytes
            else "per-process fraction"
            if fraction < 1
            else "device memory",
        )
        self._used: int | None = None
        self._peak = _peak(self._stats(index))
        self._last = self.used_bytes()

    context_bytes: int | None = None  # nothing tells it

    @property
    def limit_bytes(self) -> int | None:
        return self._limit

    def mark(self) -> Raw:
        return self._stats(self._index)

    def sample(self) -> Raw:
        return self._stats(self._index)

    def peak(self, mark: Raw) -> int:
        """Exact whenever it is the process's highest so far; else the higher reading, since the counter is not ours to reset."""
        last, self._last = self._last, int(mark["allocated_bytes"]["all"]["current"])
        peak, seen = _peak(mark), max(last, self._last)
        raised, self._peak = peak > self._peak, peak
        return max(seen, peak) if raised else seen

    def readings(self, sample: Raw) -> tuple[int, tuple[Value, ...]]:
        reserved = sample["reserved_bytes"]["all"]
        requested = sample.get("requested_bytes")
        return self.peak(sample), (
            self._last,
            reserved["current"],
            reserved["peak"],
            sample["active_bytes"]["all"]["current"],
            requested["all"]["current"] if requested else None,
            self._used,
            self._limit,
        )

    def used_bytes(self) -> int:
        return int(self._stats(self._index)["allocated_bytes"]["all"]["current"])

    def refresh(self) -> None:
        if self._memory_info is None:
            return
        try:
            free, total = self._memory_info(self._index)
        except RuntimeError as error:  # the driver of an integrated GPU does not tell
            self._memory_info = None
            notify_user(
                f"no reading of what others use on {self.device.name}: {str(error).partition(chr(10))[0]}"
            )
        else:
            self._used = total - free

    def take_events(self) -> list[Event]:
        return []

    def close(self) -> None:
        return None


class MpsProbe:
    """See `memagent.probe.Probe`. The one GPU of a Mac; its memory is the machine's own."""

    columns: tuple[str, ...] = ("allocated_bytes", "reserved_bytes", "limit_bytes")

    def __init__(
        self,
        torch: Any,
        index: int = 0,
        limit_bytes: int | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._allocated: Callable[[], int] = torch.mps.current_allocated_memory
        self._reserved: Callable[[], int] = torch.mps.driver_allocated_memory
        self._stats: Callable[[int], dict[str, Any]] | None = getattr(
            torch._C, "_accelerator_getDeviceStats", None
        )
        limit, source = _mps_limit(int(torch.mps.recommended_max_memory()), environ)
        self._limit = limit_bytes or limit
        self.device = Device(
            id="mps:0",
            kind="mps",
            name="Apple GPU",
            total_bytes=physical_memory_bytes(),
            limit_bytes=self._limit,
            limit_source="given" if limit_bytes else source,
        )
        self._peak = self._read_peak()
        self._last = self.used_bytes()

    context_bytes: int | None = None  # nothing tells it

    @property
    def limit_bytes(self) -> int | None:
        return self._limit

    def mark(self) -> Raw:
        return self._allocated(), self._read_peak()

    def sample(self) -> Raw:
        return self.mark(), self._reserved()

    def peak(self, mark: Raw) -> int:
        """As on XPU, where this torch counts peaks on MPS at all; else the higher reading."""
        last, (self._last, peak) = self._last, mark
        raised, self._peak = peak > self._peak, peak
        return max(last, self._last, peak if raised else 0)

    def readings(self, sample: Raw) -> tuple[int, tuple[Value, ...]]:
        mark, reserved = sample
        return self.peak(mark), (self._last, reserved, self._limit)

    def used_bytes(self) -> int:
        return int(self._allocated())

    def refresh(self) -> None:
        return None

    def take_events(self) -> list[Event]:
        return []

    def close(self) -> None:
        return None

    def _read_peak(self) -> int:
        if self._stats is not None:
            try:
                return _peak(self._stats(0))
            except (RuntimeError, KeyError):  # a torch whose MPS allocator keeps no statistics
                self._stats = None
        return 0


def _peak(stats: dict[str, Any]) -> int:
    return int(stats["allocated_bytes"]["all"]["peak"])


def _memory_fraction(torch: Any, index: int) -> float:
    read = getattr(torch.xpu, "get_per_process_memory_fraction", None)
    return float(read(index)) if read is not None else 1.0


def _mps_limit(recommended: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """Where torch raises out-of-memory; the machine's memory where that is switched off or lies beyond it."""
    machine = physical_memory_bytes()
    try:
        ratio = float(environ.get(_MPS_HIGH_WATERMARK, _MPS_DEFAULT_WATERMARK))
    except ValueError:
        ratio = _MPS_DEFAULT_WATERMARK
    watermark = int(recommended * ratio)
    return (
        (watermark, "MPS high watermark")
        if 0 < watermark < machine
        else (machine, "physical memory")
    )
