"""Probe of torch's caching allocator on one CUDA (or ROCm) device.

Reads the one nested dict that C++ returns. `torch.cuda.memory_stats()` flattens the same dict into
120 keys, at ten times the cost. Nothing here initializes CUDA, synchronizes, or calls the allocator
during graph capture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from memagent.probe import RawReading
from memagent.probe.accelerator import torch_device
from memagent.probe.nvml import DeviceNvml, EmptyNvml
from memagent.probe.nvml_device import NvmlReading
from memagent.probe.peaks import CudaStats, shared_counters
from memagent.wire.columns import Value
from memagent.wire.messages import Event


class CudaProbe:
    """Probe of a CUDA device: see `memagent.probe.Probe`.

    `torch` is the imported module; `index` is a device that the process already uses.
    """

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
        "energy_j",
        "temperature_c",
    )

    def __init__(self, torch: Any, index: int, limit_bytes: int | None = None) -> None:
        self._core = torch._C
        self._is_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing
        self._index = index
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        device_id = f"GPU-{uuid}" if uuid is not None else f"cuda:{index}"
        self._describe = partial(
            torch_device, torch.cuda, index, properties, device_id, "cuda", limit_bytes
        )
        self.device = self._describe()
        # ROCm builds of torch call their GPUs cuda, but NVML doesn't know them
        is_amd = getattr(torch.version, "hip", None) is not None
        self._nvml = EmptyNvml() if is_amd else DeviceNvml(self.device.id)
        self._nvml_reading = NvmlReading()
        self.context_bytes: int | None = None
        self.past_peak_bytes = 0
        self._pinned: int | None = None
        self._counters = shared_counters(torch._C)
        self._counters.open()
        self._reserved_peak = 0
        self._last: CudaStats = torch._C._cuda_memoryStats(index)

    @property
    def limit_bytes(self) -> int | None:
        return self.device.limit_bytes

    def mark(self) -> RawReading:
        """Return the exact peak since the last mark, which has reset the counters.

        Returns 0 during graph capture, when the allocator must not be called; the next mark covers
        that time, too.
        """
        if self._is_capturing():
            return 0
        allocated, reserved, self._last = self._counters.read_and_reset(self._index)
        # each mark resets the counter: the peak of the whole step is collected here
        self._reserved_peak = max(self._reserved_peak, reserved)
        return allocated

    def sample(self) -> RawReading:
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
            # torch versions before these counters return none
            stats.get("num_device_alloc"),
            stats.get("num_device_free"),
        )

    def peak(self, mark: RawReading) -> int:
        return int(mark)

    def readings(self, sample: RawReading) -> tuple[int, tuple[Value, ...]]:
        nvml = self._nvml_reading
        return sample[0], (
            *sample[1:],
            self._pinned,
            self.device.limit_bytes,
            nvml.used_bytes,
            nvml.process_bytes,
            nvml.other_processes_bytes,
            nvml.utilization_ratio,
            nvml.power_w,
            nvml.energy_j,
            nvml.temperature_c,
        )

    def used_bytes(self) -> int:
        return int(self._core._cuda_memoryStats(self._index)["allocated_bytes"]["all"]["current"])

    def peak_since_mark(self) -> int:
        """Return the most bytes allocated since the last mark, without a reset."""
        return self._counters.peak_allocated(self._index)

    def refresh(self, max_age_s: float = 0.0) -> None:
        self.device = self._describe()
        reserved = self._last["reserved_bytes"]["all"]["current"]
        nvml = self._nvml_reading = self._nvml.reading()
        self.context_bytes = (
            # both are read at different moments, so the difference can be negative
            max(0, nvml.process_bytes - reserved) if nvml.process_bytes is not None else None
        )
        self._pinned = self._pinned_bytes()

    def take_events(self) -> list[Event]:
        return self._nvml.take_events()

    def close(self) -> None:
        self._counters.close()
        self._nvml.close()

    def _pinned_bytes(self) -> int | None:
        """Return the page-locked memory in torch's host allocator, for all devices together.

        Returns None if this torch doesn't count it.
        """
        read = getattr(self._core, "_cuda_hostMemoryStats", None)
        stats = read() if read is not None else {}
        allocated = stats.get("allocated_bytes", {})
        # nested or not, depending on the version of torch
        value = allocated.get("current", allocated.get("all", {}).get("current"))
        return int(value) if value is not None else None
