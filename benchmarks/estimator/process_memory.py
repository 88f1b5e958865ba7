"""Memory of this process on the GPU as the driver counts it: allocator, context, libraries.

Where the driver doesn't tell it (a container with process ids of its own, MIG), it is the whole
device's less what others held at the start, which is right only if nobody else works there.
"""

from __future__ import annotations

import os
from typing import Any

import torch


class ProcessMemory:
    """Used memory of the first visible GPU. CUDA is started by the first `begin`."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        is_alone = pynvml.nvmlDeviceGetCount() == 1  # a UUID from torch would start CUDA here
        self._handle = (
            pynvml.nvmlDeviceGetHandleByIndex(0)
            if is_alone
            else pynvml.nvmlDeviceGetHandleByUUID(_uuid())
        )
        self.others_bytes = self._device()
        self.is_own = False
        """Whether the driver counts this process apart."""

    def begin(self) -> int:
        """Start CUDA with one kernel, and return what that takes outside of the allocator."""
        torch.ones(1, device="cuda").add_(1)
        self.is_own = self._own() is not None
        return self.outside()

    def used(self) -> int:
        torch.cuda.synchronize()
        own = self._own() if self.is_own else None
        return self._device() - self.others_bytes if own is None else own

    def outside(self) -> int:
        """Return the bytes that torch's allocator doesn't hold."""
        return self.used() - torch.cuda.memory_reserved()

    def _own(self) -> int | None:
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        sizes = [one.usedGpuMemory for one in processes if one.pid == os.getpid()]
        return int(sizes[0]) if sizes and sizes[0] else None

    def _device(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def _uuid() -> str:
    """Return the UUID in NVML's form."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"
