"""Host memory as a device: the process tree (data-loader workers included) against the limit that would be hit first.

Where the kernel limits address space (RLIMIT_AS, RLIMIT_DATA) the same kind of space is what counts as used; against a cgroup's or
the machine's memory it is resident memory: this process's own, plus what its descendants hold beside it (`process_tree`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from memagent.probe import Raw
from memagent.probe.host_limits import Limit, Usage, binding_limit, physical_memory_bytes
from memagent.probe.pressure import read_pressure
from memagent.probe.process_memory import open_own_memory
from memagent.probe.process_tree import open_process_tree
from memagent.units import format_bytes
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Event

_NEARLY_ALL = 0.99
_COUNTED = {
    "RLIMIT_AS": Usage._fields.index("mapped_bytes"),
    "RLIMIT_DATA": Usage._fields.index("data_bytes"),
}
"""What of a `Usage` counts against a limit; against all others it is resident memory."""


class HostProbe:
    """See `memagent.probe.Probe`. `limit_bytes`, where given, replaces the limits of the system."""

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
    mark: Callable[[], Raw]
    """The system call itself, with nothing of Python's in between."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._own = open_own_memory()
        self.mark, self._read_high_water = self._own.read, self._own.high_water
        self._tree = open_process_tree()
        self._given_limit = limit_bytes
        self._beside_bytes = 0
        self._high_water = self._own.peak_resident_bytes(self._own.high_water())
        self._refreshing = threading.Lock()
        self._slow: tuple[Value, ...] = (None,) * 7
        self._oom_kills: int | None = None
        self._events: list[Event] = []
        self._set_limit(self._find_limit())
        self.device = _device(self._limit)
        self._last = self.used_bytes()
        self.context_bytes: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        return self._limit.limit_bytes

    def sample(self) -> Raw:
        return self.mark(), self._read_high_water()

    def peak(self, mark: Raw) -> int:
        """Nothing counts what was held and freed between two readings."""
        last, self._last = self._last, self._used(self._own.usage(mark))
        return max(last, self._last)

    def readings(self, sample: Raw) -> tuple[int, tuple[Value, ...]]:
        """The peak is exact whenever the step raised the kernel's high-water mark of this process's resident memory."""
        mark, raised = sample
        usage = self._own.usage(mark)
        peak = self.peak(mark)
        high_water = self._own.peak_resident_bytes(raised)
        if high_water > self._high_water:
            self._high_water = high_water
            if self._counts_resident:
                peak = max(peak, high_water + self._beside_bytes)
        used = self._last
        resident = usage.resident_bytes + self._beside_bytes
        return peak, (
            used,
            max(usage.data_bytes, used),
            used,
            self._limit.limit_bytes,
            resident,
            *self._slow,
        )

    def used_bytes(self) -> int:
        return self._used(self._own.usage(self._own.read()))

    def refresh(self) -> None:
        """Looks at the descendants, the limits and the rest of the host; at once done where another thread is at it."""
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            self._own.repair()
            self.mark = self._own.read
            self._tree.refresh()
            self._beside_bytes = self._tree.beside_bytes
            self._set_limit(self._find_limit())
            self._read_pressure()
        finally:
            self._refreshing.release()

    def take_events(self) -> list[Event]:
        """`oom_kill` events since the last call: a worker that the kernel killed is told by nobody else."""
        taken, self._events = self._events, []
        return taken

    def close(self) -> None:
        self._own.close()
        if self._refreshing.acquire(timeout=1.0):
            self._tree.close()
            self._refreshing.release()

    def _used(self, usage: Usage) -> int:
        """What counts against the limit; what descendants hold beside this process is added to what is resident."""
        used = usage[self._counted]
        return used + self._beside_bytes if self._counts_resident else used

    def _set_limit(self, limit: Limit) -> None:
        self._limit = limit
        self._counted = _COUNTED.get(limit.kind, Usage._fields.index("resident_bytes"))
        self._counts_resident = limit.kind not in _COUNTED

    def _find_limit(self) -> Limit:
        own = self._own.usage(self._own.read())
        usage = own._replace(resident_bytes=own.resident_bytes + self._beside_bytes)
        if self._given_limit is not None:
            return Limit("given", self._given_limit, usage.resident_bytes)
        return binding_limit(usage)

    def _read_pressure(self) -> None:
        now = read_pressure()
        self._slow = (
            self._tree.pss_bytes,
            now.locked_bytes,
            now.shm_used_bytes,
            now.shm_limit_bytes,
            now.pressure_ratio,
            now.cgroup_used_bytes,
            now.oom_kills_total,
        )
        if now.oom_kills_total is not None:
            before, self._oom_kills = self._oom_kills, now.oom_kills_total
            if before is not None and now.oom_kills_total > before:
                data = {"device": "host", "processes": now.oom_kills_total - before}
                self._events.append(Event(kind="oom_kill", time_s=time.time(), data=data))


def device_name(limit: int | None, total: int) -> str:
    """`host (1.00 GiB of 125.58 GiB)`: with what the process may use of it, where that is less. Sizes in bytes."""
    if limit is None or limit > _NEARLY_ALL * total:
        return f"host ({format_bytes(total)})"
    return f"host ({format_bytes(limit)} of {format_bytes(total)})"


def _device(limit: Limit) -> Device:
    total = physical_memory_bytes()
    return Device(
        id="host",
        kind="host",
        name=device_name(limit.limit_bytes, total),
        total_bytes=total,
        limit_bytes=limit.limit_bytes,
        limit_source=limit.kind,
    )
