"""NVML readings of one GPU, found by its UUID. They describe the device, not this process: NVML's used is never called allocated.

1. Nothing is opened before the first reading, which is taken on a thread of ours: `nvmlInit` looks at every GPU of the machine and may
   take a second. One init a process serves all devices, and the last one closed shuts it down.
2. Each reading stands for itself: what a driver, a GPU or a permission does not give is None and leaves the rest alone. All that is
   missing is named once, in one line (`nvml_device`).
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

from memagent.diagnostics.console import notify_user
from memagent.probe.nvml_device import MissingError, NvmlDevice, NvmlReading, find_handle
from memagent.wire.messages import Event


class Nvml(Protocol):
    """`reading` and `take_events` may take milliseconds: not for the training thread. Neither raises."""

    def reading(self) -> NvmlReading: ...
    def take_events(self) -> list[Event]: ...
    def close(self) -> None: ...


class EmptyNvml:
    """Stands where there is no NVML to read, as on AMD's GPUs."""

    def reading(self) -> NvmlReading:
        return NvmlReading()

    def take_events(self) -> list[Event]:
        return []

    def close(self) -> None:
        return None


class DeviceNvml:
    """The GPU with `uuid`, opened by the first reading."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._device: NvmlDevice | None = None
        self._is_over = False
        self._last = NvmlReading()
        self._turn = threading.Lock()

    def reading(self) -> NvmlReading:
        """What NVML tells now, or told last while another thread is asking: a driver that hangs holds up one thread only."""
        if self._turn.acquire(blocking=False):
            try:
                if self._device is None and not self._is_over:
                    self._open()
                if self._device is not None:
                    self._last = self._device.reading()
            finally:
                self._turn.release()
        return self._last

    def take_events(self) -> list[Event]:
        """Events (`xid`, `ecc`) that came with the readings since the last call."""
        device = self._device
        return device.take_events() if device is not None else []

    def close(self) -> None:
        """Shuts NVML down with the last device. Left undone while a reading hangs in the driver."""
        if self._turn.acquire(blocking=False):
            device, self._device, self._is_over = self._device, None, True
            if device is not None:
                device.close()
                _library.close()
            self._turn.release()

    def _open(self) -> None:
        library = _library.open()
        if library is None:
            self._is_over = True
            return
        try:
            self._device = NvmlDevice(library, find_handle(library, self._uuid), self._uuid)
        except library.NVMLError as error:
            self._is_over = True
            _library.close()
            notify_user(f"no NVML readings of {self._uuid}: {error}")


def open_nvml(uuid: str) -> Nvml:
    """NVML for the GPU with this UUID, with `GPU-` or `MIG-` before it or without; costs nothing until it is read."""
    return DeviceNvml(uuid)


class _Library:
    """The binding, begun by the first user and ended by the last."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new: a forked child begins NVML for itself."""
        self._lock, self._users, self._is_missing = threading.Lock(), 0, False
        self._pynvml: Any = None

    def open(self) -> Any | None:
        """None where NVML is not to be had, which is said once a process and not tried again."""
        with self._lock:
            if not self._users and not self._is_missing:
                try:
                    self._pynvml = begin()
                except MissingError as reason:
                    self._is_missing = True
                    notify_user(f"no NVML readings: {reason}")
            if self._is_missing:
                return None
            self._users += 1
            return self._pynvml

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                try:
                    self._pynvml.nvmlShutdown()
                except self._pynvml.NVMLError:  # the driver went away before us
                    return


_library = _Library()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_library.reset)


def begin() -> Any:
    """The binding, with NVML begun. Raises MissingError, which says what to do."""
    try:
        import pynvml
    except ImportError as error:
        raise MissingError("install nvidia-ml-py") from error
    if not hasattr(pynvml, "nvmlDeviceGetHandleByUUID"):
        raise MissingError(
            "the installed pynvml is another package; pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise MissingError(
            f"{error} (a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        ) from error
    except pynvml.NVMLError as error:
        raise MissingError(str(error)) from error
    return pynvml
