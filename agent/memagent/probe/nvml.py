"""NVML readings of one GPU, found by its UUID. They describe the device, not this process: NVML's used is never called allocated.

A machine without a driver, an unfit permission or the wrong `pynvml` package gets `EmptyNvml` and one message that says what is missing.
"""

from __future__ import annotations

from typing import Any, Protocol

from memagent.guard import tell


class Nvml(Protocol):
    def used_bytes(self) -> int | None: ...


class EmptyNvml:
    """Stands where NVML cannot be read."""

    def used_bytes(self) -> int | None:
        return None


class DeviceNvml:
    """Memory used on one GPU by everybody, drivers and other processes included."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def used_bytes(self) -> int | None:
        return int(self._library.nvmlDeviceGetMemoryInfo(self._handle).used)


def open_nvml(uuid: str) -> Nvml:
    """NVML for the GPU with this UUID (`GPU-...` or `MIG-...`), or EmptyNvml after saying why."""
    try:
        import pynvml
    except ImportError:
        tell("no NVML readings: install nvidia-ml-py")
        return EmptyNvml()
    if not hasattr(pynvml, "nvmlDeviceGetHandleByUUID"):
        tell(
            "no NVML readings: the installed pynvml is another package; pip uninstall pynvml && pip install nvidia-ml-py"
        )
        return EmptyNvml()
    try:
        pynvml.nvmlInit()
        return DeviceNvml(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError as error:
        tell(f"no NVML readings of {uuid}: {error}")
        return EmptyNvml()
