"""Probe of host memory: the process tree, including data-loader workers, against the nearest limit.

If the nearest limit is one on address space (RLIMIT_AS, RLIMIT_DATA), address space of that kind
counts as used. Against a cgroup or the machine's memory, resident memory counts: that of this
process plus the additional memory of its descendants (`process_tree`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from memagent.probe import RawReading
from memagent.probe.host_limits import (
    Cgroup,
    MemoryLimit,
    MemoryUsage,
    binding_limit,
    find_cgroup,
    physical_memory_bytes,
    read_pressure,
)
from memagent.probe.process_memory import open_process_memory
from memagent.probe.process_tree import open_process_tree
from memagent.units import format_bytes
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Event

_NEARLY_ALL_RATIO = 0.99
"""A limit above this share of the machine's memory isn't worth a mention in the device's name."""
_USAGE_INDEX = {
    "RLIMIT_AS": MemoryUsage._fields.index("mapped_bytes"),
    "RLIMIT_DATA": MemoryUsage._fields.index("data_bytes"),
}
"""The field of `MemoryUsage` that counts against a limit; for all others it's resident memory."""
_RESIDENT_INDEX = MemoryUsage._fields.index("resident_bytes")


class HostProbe:
    """Probe of the host: see `memagent.probe.Probe`. `limit_bytes` replaces the system's limits."""

    columns: tuple[str, ...] = (
        "allocated_bytes",
        "reserved_bytes",
        "device_used_bytes",
        "limit_bytes",
        "host_rss_bytes",
        "host_pss_bytes",
        "host_locked_bytes",
        "shm_used_bytes",
        "shm_limit_bytes",
        "memory_pressure_ratio",
        "cgroup_used_bytes",
        "cgroup_oom_kills_total",
    )
    mark: Callable[[], RawReading]
    """The system call itself, without a Python function around it."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._process = open_process_memory()
        self.mark = self._process.read
        self._read_high_water = self._process.read_high_water
        self._tree = open_process_tree()
        self._fixed_limit = limit_bytes
        self._descendant_bytes = 0
        self._high_water = self._process.peak_resident_bytes(self._process.read_high_water())
        self.past_peak_bytes = self._high_water
        self._refresh_lock = threading.Lock()
        self._is_closed = False
        self._slow_values: tuple[Value, ...] = (None,) * 7
        self._oom_kills: int | None = None
        self._cgroup: Cgroup | None = None
        self._pressure_read_at = float("-inf")
        self._events: list[Event] = []
        self._set_limit(self._find_limit())
        self._last = self.used_bytes()
        self.context_bytes: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        return self._limit.limit_bytes

    def sample(self) -> RawReading:
        return self.mark(), self._read_high_water()

    def peak(self, mark: RawReading) -> int:
        """Return the higher of both readings: no counter covers the time between them."""
        last, self._last = self._last, self._used(self._process.usage(mark))
        return max(last, self._last)

    def readings(self, sample: RawReading) -> tuple[int, tuple[Value, ...]]:
        """Return the peak and the values of a sample.

        The peak is exact if the step raised the kernel's high-water mark of this process's resident
        memory. A mark will do for a sample: then the high-water mark is read now.
        """
        mark, raw_high_water = (
            sample if type(sample) is tuple else (sample, self._read_high_water())
        )
        peak = self.peak(mark)
        usage = self._process.usage(mark)
        high_water = self._process.peak_resident_bytes(raw_high_water)
        if high_water > self._high_water:
            self._high_water = high_water
            # the mark counts resident pages only, and of this process alone
            if self._counts_resident:
                peak = max(peak, high_water + self._descendant_bytes)
        used = self._last
        return peak, (
            used,
            max(usage.data_bytes, used),
            used,
            self._limit.limit_bytes,
            usage.resident_bytes + self._descendant_bytes,
            *self._slow_values,
        )

    def used_bytes(self) -> int:
        return self._used(self._process.usage(self._process.read()))

    def refresh(self, max_age_s: float = 0.0) -> None:
        """Read descendants and limits, and the cgroup and pressure unless younger than this.

        Returns at once if another thread is refreshing.
        """
        if not self._refresh_lock.acquire(blocking=False):
            return
        try:
            if self._is_closed:
                return
            self._process.repair()
            self.mark = self._process.read
            self._tree.refresh()
            self._descendant_bytes = self._tree.descendant_bytes
            now = time.monotonic()
            if now - self._pressure_read_at >= max_age_s:
                self._pressure_read_at = now
                self._cgroup = find_cgroup()
                self._read_pressure(self._cgroup)
            self._set_limit(self._find_limit(self._cgroup))
        finally:
            self._refresh_lock.release()

    def take_events(self) -> list[Event]:
        """Return `oom_kill` events since the last call: nothing else reports a killed worker."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self._is_closed = True
        # a refresh that hangs must not hang the exit: its files then stay open
        if self._refresh_lock.acquire(timeout=1.0):
            self._process.close()
            self._tree.close()
            self._refresh_lock.release()

    def _used(self, usage: MemoryUsage) -> int:
        """Return the usage that counts against the limit."""
        used = usage[self._usage_index]
        return used + self._descendant_bytes if self._counts_resident else used

    def _set_limit(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self.device = _describe_host(limit)
        self._usage_index = _USAGE_INDEX.get(limit.kind, _RESIDENT_INDEX)
        self._counts_resident = limit.kind not in _USAGE_INDEX

    def _find_limit(self, cgroup: Cgroup | None = None) -> MemoryLimit:
        process = self._process.usage(self._process.read())
        usage = process._replace(resident_bytes=process.resident_bytes + self._descendant_bytes)
        if self._fixed_limit is not None:
            return MemoryLimit("given", self._fixed_limit, usage.resident_bytes)
        return binding_limit(usage, cgroup)

    def _read_pressure(self, cgroup: Cgroup | None) -> None:
        pressure = read_pressure(cgroup)
        self._slow_values = (
            self._tree.pss_bytes,
            pressure.locked_bytes,
            pressure.shm_used_bytes,
            pressure.shm_limit_bytes,
            pressure.pressure_ratio,
            pressure.cgroup_used_bytes,
            pressure.oom_kills_total,
        )
        kills, before = pressure.oom_kills_total, self._oom_kills
        if kills is not None:
            self._oom_kills = kills
            # kills before the first reading are not of this run
            if before is not None and kills > before:
                data = {"device": "host", "processes": kills - before}
                self._events.append(Event(kind="oom_kill", time_s=time.time(), data=data))


def device_name(limit: int | None, total: int) -> str:
    """Return `host (limit 1.00 GiB)`, or the size of its memory if that is the limit. Bytes."""
    if limit is None or limit > _NEARLY_ALL_RATIO * total:
        return f"host ({format_bytes(total)})"
    return f"host (limit {format_bytes(limit)})"


def _describe_host(limit: MemoryLimit) -> Device:
    total = physical_memory_bytes()
    return Device(
        id="host",
        kind="host",
        name=device_name(limit.limit_bytes, total),
        total_bytes=total,
        limit_bytes=limit.limit_bytes,
        limit_source=limit.kind,
    )
