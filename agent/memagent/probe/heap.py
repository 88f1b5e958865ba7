"""Bytes that this process has allocated and not freed, whatever its pages hold.

Resident memory stays the same while a leak fills what imports and warm-up have freed, for tens of
MiB. glibc and Python count what is allocated:

1. `mallinfo2` (glibc 2.33) sums up all arenas and mapped blocks: tensors, arrays, long strings.
2. `sys.getallocatedblocks` counts Python's own small objects.

A reading takes from 0.03 ms after `import torch` to 100 ms with hundreds of thousands of free
pieces, which glibc walks through. So readings that are slow give way to resident memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path

MAX_READING_S, MAX_READINGS_S = 0.02, 0.1
"""Processor time of a reading, and of all, from which resident memory is read instead."""
_BLOCK_BYTES = 64
"""About the size of a small object."""
_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class HeapReader:
    """Reads the allocated bytes. mallinfo: glibc's. clock: returns the thread's processor time.

    If a reading takes longer than `MAX_READING_S`, or all of them longer than `MAX_READINGS_S`,
    later ones add the growth of resident memory to the last one.
    """

    def __init__(
        self, mallinfo: Callable[[], _MallInfo], clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._mallinfo = mallinfo
        self._clock = clock
        self._spent_s = 0.0
        self._beyond_resident: int | None = None

    def __call__(self) -> int:
        if self._beyond_resident is not None:
            return _resident_bytes() + self._beyond_resident
        started = self._clock()
        info = self._mallinfo()
        took_s = self._clock() - started
        self._spent_s += took_s
        used = int(info.uordblks + info.hblkhd + _BLOCK_BYTES * sys.getallocatedblocks())
        if took_s > MAX_READING_S or self._spent_s > MAX_READINGS_S:
            self._beyond_resident = used - _resident_bytes()
        return used


def heap_reader() -> HeapReader | None:
    """Return a reader, None without glibc."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo.restype = _MallInfo
    return HeapReader(mallinfo)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_bytes().split()
    return int(pages[1]) * mmap.PAGESIZE
