"""One GPU that NVML has opened: what it tells, what it does not, and the errors it throws.

1. Each reading is asked for by itself; what the driver says it will never give is not asked for again.
2. On a slice of a GPU (MIG) memory and processes are those of the slice; power, temperature and errors are those of the board.
3. XIDs and uncorrected ECC errors become events, fetched without waiting for any.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from memagent.diagnostics.console import notify_user
from memagent.wire.messages import Event

_EVENTS_A_READING = 32
"""A GPU that fails may throw XIDs without end; the rest waits for the next reading."""


@dataclass(frozen=True)
class NvmlReading:
    """One GPU at one moment; a field is None where NVML does not give it."""

    used_bytes: int | None = None
    """By everybody. Without what the driver keeps for itself, except where the driver is too old to tell it apart (before 510)."""
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    """Kept by driver and firmware."""
    total_bytes: int | None = None
    process_bytes: int | None = None
    """By this process, its CUDA context included."""
    other_processes_bytes: int | None = None
    utilization_ratio: float | None = None
    """Share of the last sample period in which a kernel ran."""
    power_w: float | None = None
    temperature_c: float | None = None


class MissingError(Exception):
    """NVML, or one reading of it, is not to be had; the message says why and what to do."""


def find_handle(library: Any, uuid: str) -> Any:
    """torch tells a UUID without the prefix, and that of the slice on a sliced GPU."""
    prefix, _, bare = (
        uuid.partition("-") if uuid.startswith(("GPU-", "MIG-")) else ("GPU", "", uuid)
    )
    other = "MIG" if prefix == "GPU" else "GPU"
    try:
        return library.nvmlDeviceGetHandleByUUID(f"{prefix}-{bare}")
    except library.NVMLError as error:
        try:
            return library.nvmlDeviceGetHandleByUUID(f"{other}-{bare}")
        except library.NVMLError:
            raise error from None


class NvmlDevice:
    """An open GPU: asks for what it gives, and drops from its list what it never will."""

    def __init__(self, library: Any, handle: Any, uuid: str) -> None:
        self._library, self._handle, self._board, self._uuid = (
            library,
            handle,
            _board(library, handle),
            uuid,
        )
        self._events: deque[Event] = deque(maxlen=1_000)
        self._event_set: Any = None
        self._ecc_errors: int | None = None
        self._lists = "_v3"
        self._said: set[str] = set()
        self._sources: dict[str, Callable[[NvmlReading], NvmlReading]] = {
            "memory": self._memory,
            "memory by process": self._processes,
            "utilization": self._utilization,
            "power": self._power,
            "temperature": self._temperature,
            "XIDs": self._xids,
            "ECC errors": self._ecc,
        }
        self._never = (
            library.NVMLError_NotSupported,
            library.NVMLError_NoPermission,
            library.NVMLError_FunctionNotFound,
            AttributeError,  # a binding older than the function
        )

    def reading(self) -> NvmlReading:
        reading, missing = NvmlReading(), {}
        for name, source in list(self._sources.items()):
            try:
                reading = source(reading)
            except (self._library.NVMLError, MissingError, AttributeError) as error:
                missing[name] = str(error)
                if isinstance(error, self._never):
                    del self._sources[name]
        self._say(missing)
        return reading

    def take_events(self) -> list[Event]:
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def close(self) -> None:
        if self._event_set is not None:
            try:
                self._library.nvmlEventSetFree(self._event_set)
            except self._library.NVMLError:
                return

    def _say(self, missing: dict[str, str]) -> None:
        """Each missing reading is named once; those that miss for the same reason, together."""
        reasons: dict[str, list[str]] = {}
        for name, reason in missing.items():
            if name not in self._said:
                reasons.setdefault(reason, []).append(name)
        self._said |= missing.keys()
        if reasons:
            listed = "; ".join(
                f"{', '.join(names)} ({reason})" for reason, names in reasons.items()
            )
            notify_user(f"NVML does not tell everything of {self._uuid}, missing: {listed}")

    def _memory(self, reading: NvmlReading) -> NvmlReading:
        library = self._library
        try:
            memory = library.nvmlDeviceGetMemoryInfo(self._handle, version=library.nvmlMemory_v2)
        except self._never:
            memory = library.nvmlDeviceGetMemoryInfo(self._handle)
        return replace(
            reading,
            used_bytes=memory.used,
            free_bytes=memory.free,
            reserved_bytes=getattr(memory, "reserved", None),
            total_bytes=memory.total,
        )

    def _processes(self, reading: NvmlReading) -> NvmlReading:
        """A process with both compute and graphics work is in both lists, each time with all its memory."""
        by_pid: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._running(kind):
                known, told = by_pid.get(process.pid), process.usedGpuMemory
                by_pid[process.pid] = (
                    max(known, told) if known is not None and told is not None else told or known
                )
        if os.getpid() not in by_pid:
            raise MissingError(
                "this process is not in the driver's list: another PID namespace, as in a container"
            )
        own = by_pid.pop(os.getpid())
        if own is None:
            raise MissingError("the driver does not tell it")
        others = [used for used in by_pid.values() if used is not None]
        all_told = len(others) == len(by_pid)
        return replace(
            reading, process_bytes=own, other_processes_bytes=sum(others) if all_told else None
        )

    def _running(self, kind: str) -> list[Any]:
        try:
            return list(
                getattr(self._library, f"nvmlDeviceGet{kind}RunningProcesses{self._lists}")(
                    self._handle
                )
            )
        except (
            self._library.NVMLError_FunctionNotFound,
            AttributeError,
        ):  # an older driver, or an older binding
            if self._lists == "_v2":
                raise
            self._lists = "_v2"
            return self._running(kind)
        except self._library.NVMLError_NotSupported:
            if kind == "Compute":
                raise
            return []  # a GPU without graphics

    def _utilization(self, reading: NvmlReading) -> NvmlReading:
        return replace(
            reading,
            utilization_ratio=self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100,
        )

    def _power(self, reading: NvmlReading) -> NvmlReading:
        return replace(reading, power_w=self._library.nvmlDeviceGetPowerUsage(self._board) / 1_000)

    def _temperature(self, reading: NvmlReading) -> NvmlReading:
        library = self._library
        try:
            degrees = library.nvmlDeviceGetTemperature(self._board, library.NVML_TEMPERATURE_GPU)
        except library.NVMLError_FunctionNotFound:  # NVML 13 has deprecated the older call
            degrees = library.nvmlDeviceGetTemperatureV(self._board, library.NVML_TEMPERATURE_GPU)
        return replace(reading, temperature_c=float(degrees))

    def _xids(self, reading: NvmlReading) -> NvmlReading:
        library = self._library
        if self._event_set is None:
            self._event_set = self._watch_xids()
        for _ in range(_EVENTS_A_READING):
            try:
                event = library.nvmlEventSetWait_v2(self._event_set, 0)
            except library.NVMLError_Timeout:
                break
            if event.eventType == library.nvmlEventTypeXidCriticalError:
                self._add_event("xid", code=int(event.eventData))
        return reading

    def _watch_xids(self) -> Any:
        library = self._library
        if (
            not library.nvmlDeviceGetSupportedEventTypes(self._board)
            & library.nvmlEventTypeXidCriticalError
        ):
            raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)
        event_set = library.nvmlEventSetCreate()
        try:
            library.nvmlDeviceRegisterEvents(
                self._board, library.nvmlEventTypeXidCriticalError, event_set
            )
        except library.NVMLError:
            library.nvmlEventSetFree(event_set)
            raise
        return event_set

    def _ecc(self, reading: NvmlReading) -> NvmlReading:
        """Uncorrected errors since the driver was loaded; those from before this run make no event."""
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


def _board(library: Any, handle: Any) -> Any:
    """The GPU that a slice is part of; else the GPU itself."""
    try:
        if library.nvmlDeviceIsMigDeviceHandle(handle):
            return library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except library.NVMLError:  # a driver older than slices
        return handle
    return handle
