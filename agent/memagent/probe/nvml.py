"""NVML readings of one GPU, found by its UUID. They describe the device, not this process.

1. The first reading opens NVML, on a thread of memagent: `nvmlInit` looks at every GPU of the
   machine and may take a second. All devices share one `nvmlInit`; the last one to close calls
   `nvmlShutdown`.
2. Readings are independent. If a driver, a GPU or a permission doesn't provide one, its field is
   None. One line names all missing readings, once (`nvml_device`).
"""

from __future__ import annotations

import os
import threading
from typing import Any

from memagent.diagnostics import notify_user
from memagent.probe.detached import forks_wait
from memagent.probe.nvml_device import NvmlDevice, NvmlReading, NvmlUnavailableError, find_handle
from memagent.wire.messages import Event


class EmptyNvml:
    """The null object for devices without NVML, such as AMD's GPUs."""

    def reading(self) -> NvmlReading:
        return NvmlReading()

    def take_events(self) -> list[Event]:
        return []

    def close(self) -> None:
        return None


class DeviceNvml:
    """The GPU with this UUID, with or without the prefix `GPU-` or `MIG-`.

    The first reading opens it. `reading` and `take_events` may take milliseconds, so they are not
    for the training thread. Neither raises.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._device: NvmlDevice | None = None
        self._is_closed = False
        self._last = NvmlReading()
        # locks are per device: a driver that hangs on one GPU leaves the others readable
        self._lock = threading.Lock()

    def reading(self) -> NvmlReading:
        """Read NVML; while another thread reads, return the last result instead.

        So a driver that hangs blocks one thread only.
        """
        if self._lock.acquire(blocking=False):
            try:
                if self._device is None and not self._is_closed:
                    self._open()
                if self._device is not None:
                    self._last = self._device.reading()
            finally:
                self._lock.release()
        return self._last

    def take_events(self) -> list[Event]:
        """Return the events (`xid`, `ecc`) of the readings since the last call."""
        device = self._device
        return device.take_events() if device is not None else []

    def close(self) -> None:
        """Close the device, unless a reading hangs in the driver."""
        if self._lock.acquire(blocking=False):
            device, self._device = self._device, None
            # set under the lock: a reading that comes later must not open the device again
            self._is_closed = True
            if device is not None:
                device.close()
                _library.close()
            self._lock.release()

    def _open(self) -> None:
        library = _library.open()
        if library is None:
            # a missing library is not looked for again at each reading
            self._is_closed = True
            return
        try:
            self._device = NvmlDevice(library, find_handle(library, self._uuid), self._uuid)
        except library.NVMLError as error:
            self._is_closed = True
            _library.close()
            notify_user(f"no NVML readings of {self._uuid}: {error}")


class _Library:
    """The binding, initialized for the first user and shut down after the last."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child has to initialize NVML itself."""
        # a new lock: in the parent, a thread that the child lacks may hold the old one
        self._lock = threading.Lock()
        self._users = 0
        self._is_unavailable = False
        self._pynvml: Any = None

    def open(self) -> Any | None:
        """Return the binding; None without NVML, which is reported and tried once per process."""
        with self._lock:
            if not self._users and not self._is_unavailable:
                try:
                    self._pynvml = init_nvml()
                except NvmlUnavailableError as reason:
                    self._is_unavailable = True
                    notify_user(f"no NVML readings: {reason}")
            if self._is_unavailable:
                return None
            self._users += 1
            return self._pynvml

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                try:
                    self._pynvml.nvmlShutdown()
                except self._pynvml.NVMLError:  # the driver is gone
                    return


_library = _Library()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_library.reset)


def init_nvml() -> Any:
    """Import and initialize the binding. Raises NvmlUnavailableError with the remedy."""
    try:
        with forks_wait():
            import pynvml
    except ImportError as error:
        raise NvmlUnavailableError("install nvidia-ml-py") from error
    if not hasattr(pynvml, "nvmlDeviceGetHandleByUUID"):
        raise NvmlUnavailableError(
            "the installed pynvml is another package; "
            "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise NvmlUnavailableError(
            f"{error} (a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        ) from error
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(str(error)) from error
    return pynvml
