"""Probes of Intel GPUs (`torch.xpu`) and Apple GPUs (`torch.mps`).

Nothing here initializes a device or synchronizes with it. A probe exists only for a device that
already has parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from memagent.diagnostics import notify_user
from memagent.probe import RawReading
from memagent.probe.host_limits import physical_memory_bytes
from memagent.wire.columns import Value
from memagent.wire.messages import FRACTION_LIMIT, Device, Event

_MPS_HIGH_WATERMARK = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"
_MPS_DEFAULT_WATERMARK = 1.7
"""Ratio to the recommended working set (MPSAllocator.h). Beyond it torch raises out-of-memory,
although a Mac would swap."""


class AcceleratorProbe:
    """The parts of a probe that Intel and Apple GPUs share: no events, and a fixed limit."""

    device: Device
    context_bytes: int | None = None  # not available
    past_peak_bytes = 0

    @property
    def limit_bytes(self) -> int | None:
        return self.device.limit_bytes

    def refresh(self, max_age_s: float = 0.0) -> None:
        return None

    def take_events(self) -> list[Event]:
        return []

    def close(self) -> None:
        return None


class XpuProbe(AcceleratorProbe):
    """Probe of an Intel GPU: see `memagent.probe.Probe`.

    `torch` is the imported module; `index` is a device that the process already uses.
    """

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
        uuid = getattr(properties, "uuid", None)
        device_id = f"xpu:{uuid if uuid is not None else index}"
        self._describe = partial(
            torch_device, torch.xpu, index, properties, device_id, "xpu", limit_bytes
        )
        self.device = self._describe()
        self._used: int | None = None
        self._peak = _peak(self._stats(index))
        self._last = self.used_bytes()

    def mark(self) -> RawReading:
        return self._stats(self._index)

    def sample(self) -> RawReading:
        return self._stats(self._index)

    def peak(self, mark: RawReading) -> int:
        """Return the exact peak if it's the process's highest so far, else the higher reading.

        The counter belongs to the user, so the probe doesn't reset it.
        """
        last, self._last = self._last, int(mark["allocated_bytes"]["all"]["current"])
        peak, higher = _peak(mark), max(last, self._last)
        is_highest, self._peak = peak > self._peak, peak
        return max(higher, peak) if is_highest else higher

    def readings(self, sample: RawReading) -> tuple[int, tuple[Value, ...]]:
        reserved = sample["reserved_bytes"]["all"]
        requested = sample.get("requested_bytes")
        return self.peak(sample), (
            self._last,
            reserved["current"],
            reserved["peak"],
            sample["active_bytes"]["all"]["current"],
            requested["all"]["current"] if requested else None,
            self._used,
            self.limit_bytes,
        )

    def used_bytes(self) -> int:
        return int(self._stats(self._index)["allocated_bytes"]["all"]["current"])

    def refresh(self, max_age_s: float = 0.0) -> None:
        self.device = self._describe()
        if self._memory_info is None:
            return
        try:
            free, total = self._memory_info(self._index)
        except RuntimeError as error:  # the driver of an integrated GPU does not report it
            self._memory_info = None
            reason = str(error).partition("\n")[0]
            notify_user(
                f"memory used by other processes on {self.device.name} is unknown: {reason}"
            )
        else:
            self._used = total - free


class MpsProbe(AcceleratorProbe):
    """Probe of a Mac's GPU, which uses the machine's memory: see `memagent.probe.Probe`."""

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
        self.device = Device(
            id="mps:0",
            kind="mps",
            name="Apple GPU",
            total_bytes=physical_memory_bytes(),
            limit_bytes=limit_bytes or limit,
            limit_source="given" if limit_bytes else source,
        )
        self._peak = self._read_peak()
        self._last = self.used_bytes()

    def mark(self) -> RawReading:
        return self._allocated(), self._read_peak()

    def sample(self) -> RawReading:
        return self.mark(), self._reserved()

    def peak(self, mark: RawReading) -> int:
        """Return the peak as on XPU if this torch counts peaks on MPS, else the higher reading."""
        last, (self._last, peak) = self._last, mark
        is_highest, self._peak = peak > self._peak, peak
        return max(last, self._last, peak if is_highest else 0)

    def readings(self, sample: RawReading) -> tuple[int, tuple[Value, ...]]:
        mark, reserved = sample
        return self.peak(mark), (self._last, reserved, self.limit_bytes)

    def used_bytes(self) -> int:
        return int(self._allocated())

    def _read_peak(self) -> int:
        if self._stats is not None:
            try:
                return _peak(self._stats(0))
            except (RuntimeError, KeyError):  # this torch's MPS allocator has no statistics
                self._stats = None
        return 0


def torch_device(
    backend: Any,
    index: int,
    properties: Any,
    device_id: str,
    kind: Literal["cuda", "xpu"],
    limit_bytes: int | None,
) -> Device:
    """Describe a GPU by its properties and the limit in `backend` (`torch.cuda`, `torch.xpu`)."""
    read_fraction = getattr(backend, "get_per_process_memory_fraction", None)
    fraction = float(read_fraction(index)) if read_fraction is not None else 1.0
    total = int(properties.total_memory)
    source = FRACTION_LIMIT if fraction < 1 else "device memory"
    return Device(
        id=device_id,
        kind=kind,
        name=str(properties.name),
        index=index,
        total_bytes=total,
        limit_bytes=limit_bytes or int(total * fraction),
        limit_source="given" if limit_bytes else source,
    )


def _peak(stats: dict[str, Any]) -> int:
    return int(stats["allocated_bytes"]["all"]["peak"])


def _mps_limit(recommended: int, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the limit at which torch raises out-of-memory, and its source.

    The machine's memory is the limit if torch's limit is disabled or higher.
    """
    total = physical_memory_bytes()
    try:
        ratio = float(environ.get(_MPS_HIGH_WATERMARK, _MPS_DEFAULT_WATERMARK))
    except ValueError:
        ratio = _MPS_DEFAULT_WATERMARK
    watermark = int(recommended * ratio)
    if 0 < watermark < total:
        return watermark, "MPS high watermark"
    return total, "physical memory"
