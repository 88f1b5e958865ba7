"""One GPU that NVML has opened: its readings, the missing ones, and the errors it reports.

1. Each reading is a separate call. A reading that the driver never provides is not called again.
2. On a slice of a GPU (MIG), memory and processes describe the slice; power, temperature and errors
   describe the board.
3. XIDs and uncorrected ECC errors become events, fetched without waiting.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from memagent.diagnostics import notify_user
from memagent.wire.messages import Event

_MAX_XIDS_PER_READING = 32
"""A failing GPU may report XIDs without end; the rest waits for the next reading."""
_MAX_EVENTS = 1_000


@dataclass(frozen=True)
class NvmlReading:
    """One GPU at one moment; a field is None if NVML does not provide it."""

    used_bytes: int | None = None
    """Used by all processes, without memory reserved by the driver. Drivers before 510 don't
    separate the two."""
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    """Reserved by driver and firmware."""
    total_bytes: int | None = None
    process_bytes: int | None = None
    """Used by this process, including its CUDA context."""
    other_processes_bytes: int | None = None
    utilization_ratio: float | None = None
    """Share of the last sample period in which a kernel ran."""
    power_w: float | None = None
    energy_j: float | None = None
    """Drawn by the GPU since it was opened. GPUs before Volta don't count it."""
    temperature_c: float | None = None


class NvmlUnavailableError(Exception):
    """NVML, or one of its readings, is not available; the message has the reason and remedy."""


def find_handle(library: Any, uuid: str) -> Any:
    """Return the device with this UUID.

    torch reports a UUID without the prefix, and on a sliced GPU the one of the slice.
    """
    prefix, _, number = (
        uuid.partition("-") if uuid.startswith(("GPU-", "MIG-")) else ("GPU", "", uuid)
    )
    other = "MIG" if prefix == "GPU" else "GPU"
    try:
        return library.nvmlDeviceGetHandleByUUID(f"{prefix}-{number}")
    except library.NVMLError as error:
        try:
            return library.nvmlDeviceGetHandleByUUID(f"{other}-{number}")
        except library.NVMLError:
            # the first error, which is about the kind that torch's UUID names
            raise error from None


class NvmlDevice:
    """An open GPU. Calls each source of readings until the driver says that it never works."""

    def __init__(self, library: Any, handle: Any, uuid: str) -> None:
        self._library = library
        self._handle = handle
        self._board = _board_handle(library, handle)
        self._uuid = uuid
        self._events: deque[Event] = deque(maxlen=_MAX_EVENTS)
        self._event_set: Any = None
        self._ecc_errors: int | None = None
        self._first_energy_mj: int | None = None
        self._process_list_version = "_v3"
        self._reported: set[str] = set()
        self._sources: dict[str, Callable[[NvmlReading], NvmlReading]] = {
            "memory": self._read_memory,
            "memory by process": self._read_processes,
            "utilization": self._read_utilization,
            "power": self._read_power,
            "energy": self._read_energy,
            "temperature": self._read_temperature,
            "XIDs": self._read_xids,
            "ECC errors": self._read_ecc_errors,
        }
        self._permanent_errors = (
            library.NVMLError_NotSupported,
            library.NVMLError_NoPermission,
            library.NVMLError_FunctionNotFound,
            AttributeError,  # the binding is older than the function
        )

    def reading(self) -> NvmlReading:
        """Call all sources, and report the missing ones."""
        reading, missing = NvmlReading(), {}
        # a copy: sources that never work are removed on the way
        for name, source in list(self._sources.items()):
            try:
                reading = source(reading)
            except (self._library.NVMLError, NvmlUnavailableError, AttributeError) as error:
                missing[name] = str(error)
                if isinstance(error, self._permanent_errors):
                    del self._sources[name]
        self._report_missing(missing)
        return reading

    def take_events(self) -> list[Event]:
        """Return the events since the last call. Another thread may be adding some."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def close(self) -> None:
        if self._event_set is not None:
            try:
                self._library.nvmlEventSetFree(self._event_set)
            except self._library.NVMLError:
                return

    def _report_missing(self, missing: dict[str, str]) -> None:
        """Name each missing reading once, grouped by the reason."""
        reasons: dict[str, list[str]] = {}
        for name, reason in missing.items():
            if name not in self._reported:
                reasons.setdefault(reason, []).append(name)
        self._reported |= missing.keys()
        if reasons:
            groups = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
            notify_user(
                f"NVML does not provide all readings of {self._uuid}, missing: {'; '.join(groups)}"
            )

    def _read_memory(self, reading: NvmlReading) -> NvmlReading:
        library = self._library
        try:
            memory = library.nvmlDeviceGetMemoryInfo(self._handle, version=library.nvmlMemory_v2)
        except self._permanent_errors:
            memory = library.nvmlDeviceGetMemoryInfo(self._handle)
        return replace(
            reading,
            used_bytes=memory.used,
            free_bytes=memory.free,
            reserved_bytes=getattr(memory, "reserved", None),
            total_bytes=memory.total,
        )

    def _read_processes(self, reading: NvmlReading) -> NvmlReading:
        """Read memory by process.

        A process with both compute and graphics work is in both lists, each time with all of it.
        """
        by_pid: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._running_processes(kind):
                sizes = (by_pid.get(process.pid), process.usedGpuMemory)
                by_pid[process.pid] = max((s for s in sizes if s is not None), default=None)
        if os.getpid() not in by_pid:
            raise NvmlUnavailableError(
                "this process is not in the driver's list: another PID namespace, as in a container"
            )
        own = by_pid.pop(os.getpid())
        if own is None:
            raise NvmlUnavailableError("the driver does not report it")
        others = [size for size in by_pid.values() if size is not None]
        is_complete = len(others) == len(by_pid)
        return replace(
            reading, process_bytes=own, other_processes_bytes=sum(others) if is_complete else None
        )

    def _running_processes(self, kind: str) -> list[Any]:
        name = f"nvmlDeviceGet{kind}RunningProcesses{self._process_list_version}"
        library = self._library
        try:
            return list(getattr(library, name)(self._handle))
        except (library.NVMLError_FunctionNotFound, AttributeError):  # older driver or binding
            if self._process_list_version == "_v2":
                raise
            self._process_list_version = "_v2"
            return self._running_processes(kind)
        except library.NVMLError_NotSupported:
            if kind == "Compute":
                raise
            return []  # a GPU without graphics

    def _read_utilization(self, reading: NvmlReading) -> NvmlReading:
        percent = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu
        return replace(reading, utilization_ratio=percent / 100)

    def _read_power(self, reading: NvmlReading) -> NvmlReading:
        return replace(reading, power_w=self._library.nvmlDeviceGetPowerUsage(self._board) / 1_000)

    def _read_energy(self, reading: NvmlReading) -> NvmlReading:
        """Read the energy since the first reading; NVML counts since the driver was loaded."""
        energy_mj = int(self._library.nvmlDeviceGetTotalEnergyConsumption(self._board))
        if self._first_energy_mj is None or energy_mj < self._first_energy_mj:
            self._first_energy_mj = energy_mj
        return replace(reading, energy_j=(energy_mj - self._first_energy_mj) / 1_000)

    def _read_temperature(self, reading: NvmlReading) -> NvmlReading:
        library = self._library
        try:
            degrees = library.nvmlDeviceGetTemperature(self._board, library.NVML_TEMPERATURE_GPU)
        except library.NVMLError_FunctionNotFound:  # deprecated by NVML 13
            degrees = library.nvmlDeviceGetTemperatureV(self._board, library.NVML_TEMPERATURE_GPU)
        return replace(reading, temperature_c=float(degrees))

    def _read_xids(self, reading: NvmlReading) -> NvmlReading:
        library = self._library
        if self._event_set is None:
            self._event_set = self._register_for_xids()
        for _ in range(_MAX_XIDS_PER_READING):
            try:
                event = library.nvmlEventSetWait_v2(self._event_set, 0)
            except library.NVMLError_Timeout:
                break
            if event.eventType == library.nvmlEventTypeXidCriticalError:
                self._add_event("xid", code=int(event.eventData))
        return reading

    def _register_for_xids(self) -> Any:
        library = self._library
        xid_type = library.nvmlEventTypeXidCriticalError
        if not library.nvmlDeviceGetSupportedEventTypes(self._board) & xid_type:
            raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)
        event_set = library.nvmlEventSetCreate()
        try:
            library.nvmlDeviceRegisterEvents(self._board, xid_type, event_set)
        except library.NVMLError:
            library.nvmlEventSetFree(event_set)
            raise
        return event_set

    def _read_ecc_errors(self, reading: NvmlReading) -> NvmlReading:
        """Add an event for new uncorrected errors; NVML counts since the driver was loaded."""
        library = self._library
        errors = int(
            library.nvmlDeviceGetTotalEccErrors(
                self._board, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
            )
        )
        if self._ecc_errors is not None and errors > self._ecc_errors:
            self._add_event("ecc", uncorrected_errors=errors - self._ecc_errors)
        self._ecc_errors = errors
        return reading

    def _add_event(self, kind: str, **data: int) -> None:
        self._events.append(
            Event(kind=kind, time_s=time.time(), data={"device": self._uuid, **data})
        )


def _board_handle(library: Any, handle: Any) -> Any:
    """Return the GPU that a slice is part of; else the GPU itself."""
    try:
        if library.nvmlDeviceIsMigDeviceHandle(handle):
            return library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except library.NVMLError:  # the driver is older than slices
        return handle
    return handle
