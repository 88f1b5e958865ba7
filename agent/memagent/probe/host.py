"""Host memory as a device: the process tree (data-loader workers included) against the limit that would be hit first.

Where the kernel limits address space (RLIMIT_AS, RLIMIT_DATA) the same kind of space is what counts as used; against a cgroup's or
the machine's memory it is resident memory: this process's own, plus the proportional share (PSS) of its children, so that pages
shared by forked workers count once.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Protocol

import psutil

from memagent.probe import Raw
from memagent.probe.host_limits import Limit, Usage, binding_limit
from memagent.units import format_bytes
from memagent.wire.columns import Value
from memagent.wire.messages import Device

_DUTY = 0.01
"""Share of time that reading the children's memory may take: PSS costs up to 15 ms a process."""


_COUNTED = {"RLIMIT_AS": Usage._fields.index("mapped_bytes"), "RLIMIT_DATA": Usage._fields.index("data_bytes")}
"""What of a `Usage` counts against a limit; against all others it is resident memory."""


class OwnMemory(Protocol):
    def read(self) -> Raw: ...
    def usage(self, raw: Raw) -> Usage: ...
    def peak_resident_bytes(self) -> int: ...
    def close(self) -> None: ...


class ProcfsMemory:
    """This process's memory on Linux, from a kept /proc/self/statm: 2 us a reading, against 11 for open and read."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page = os.sysconf("SC_PAGE_SIZE")
        import resource  # absent on Windows

        self._getrusage, self._self = resource.getrusage, resource.RUSAGE_SELF

    def read(self) -> Raw:
        return os.pread(self._fd, 128, 0)

    def usage(self, raw: Raw) -> Usage:
        pages = raw.split()
        page = self._page
        return Usage(int(pages[0]) * page, int(pages[5]) * page, int(pages[1]) * page)

    def peak_resident_bytes(self) -> int:
        return self._getrusage(self._self).ru_maxrss * 1024

    def close(self) -> None:
        os.close(self._fd)


class PsutilMemory:
    """This process's memory where there is no /proc: resident memory stands for all."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self) -> Raw:
        return self._process.memory_info()

    def usage(self, raw: Raw) -> Usage:
        return Usage(raw.vms, raw.rss, raw.rss)

    def peak_resident_bytes(self) -> int:
        return 0

    def close(self) -> None:
        return None


class HostProbe:
    """See `memagent.probe.Probe`. `limit_bytes`, where given, replaces the limits of the system."""

    columns: tuple[str, ...] = (
        "allocated_bytes",
        "reserved_bytes",
        "device_used_bytes",
        "limit_bytes",
        "host_rss_bytes",
    )

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._own: OwnMemory = ProcfsMemory() if sys.platform.startswith("linux") else PsutilMemory()
        self._process = psutil.Process()
        self._given_limit = limit_bytes
        self._children_bytes = 0
        self._next_children_at = 0.0
        self._high_water = self._own.peak_resident_bytes()
        self._set_limit(self._find_limit())
        self.device = _device(self._limit)
        self._last = self.used_bytes()

    @property
    def limit_bytes(self) -> int | None:
        return self._limit.limit_bytes

    def mark(self) -> Raw:
        return self._own.read()

    def sample(self) -> Raw:
        return self._own.read(), self._own.peak_resident_bytes()

    def peak(self, mark: Raw) -> int:
        """Nothing counts what was held and freed between two readings."""
        last, self._last = self._last, self._used(self._own.usage(mark))
        return max(last, self._last)

    def readings(self, sample: Raw) -> tuple[int, tuple[Value, ...]]:
        """The peak is exact whenever the step raised the kernel's high-water mark of this process's resident memory."""
        mark, high_water = sample
        usage = self._own.usage(mark)
        peak = self.peak(mark)
        if high_water > self._high_water:
            self._high_water = high_water
            if self._counts_resident:
                peak = max(peak, high_water + self._children_bytes)
        used = self._last
        resident = usage.resident_bytes + self._children_bytes
        return peak, (used, max(usage.data_bytes, used), used, self._limit.limit_bytes, resident)

    def used_bytes(self) -> int:
        return self._used(self._own.usage(self._own.read()))

    def refresh(self) -> None:
        """Reads the children's memory, at most a hundredth of the time, and looks whether another limit has been set."""
        if time.monotonic() >= self._next_children_at:
            began = time.monotonic()
            self._children_bytes = sum(map(_proportional_bytes, self._process.children(recursive=True)))
            took = time.monotonic() - began
            self._next_children_at = began + took / _DUTY
        self._set_limit(self._find_limit())

    def close(self) -> None:
        self._own.close()

    def _used(self, usage: Usage) -> int:
        """What counts against the limit; the children's share is added to what is resident."""
        used = usage[self._counted]
        return used + self._children_bytes if self._counts_resident else used

    def _set_limit(self, limit: Limit) -> None:
        self._limit = limit
        self._counted = _COUNTED.get(limit.kind, Usage._fields.index("resident_bytes"))
        self._counts_resident = limit.kind not in _COUNTED

    def _find_limit(self) -> Limit:
        own = self._own.usage(self._own.read())
        usage = Usage(own.mapped_bytes, own.data_bytes, own.resident_bytes + self._children_bytes)
        if self._given_limit is not None:
            return Limit("given", self._given_limit, usage.resident_bytes)
        return binding_limit(usage)


def _device(limit: Limit) -> Device:
    total = psutil.virtual_memory().total
    return Device(
        id="host",
        kind="host",
        name=f"host ({format_bytes(total)})",
        total_bytes=total,
        limit_bytes=limit.limit_bytes,
        limit_source=limit.kind,
    )


def _proportional_bytes(process: psutil.Process) -> int:
    """PSS where the system tells it, else resident memory; 0 for a process that has gone or is not ours to read."""
    try:
        info = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(info, "pss", info.rss))
