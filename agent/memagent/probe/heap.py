"""Bytes that this process has allocated and not freed, whatever its pages hold.

Resident memory stays the same while a leak fills what imports and warm-up have freed, for tens of
MiB. glibc and Python count what is allocated:

1. `mallinfo2` (glibc 2.33) sums up all arenas and mapped blocks: tensors, arrays, long strings.
2. `sys.getallocatedblocks` counts Python's own small objects.
3. Arrow allocates in its own pool, and counts it.
4. Shared memory is in no heap. The kernel counts its resident pages.

A reading takes from 0.03 ms after `import torch` to 100 ms with hundreds of thousands of free
pieces, which glibc walks through. So readings that are slow give way to resident memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
        used = _in_use(info) + _shared_bytes()
        if took_s > MAX_READING_S or self._spent_s > MAX_READINGS_S:
            self._beyond_resident = used - _resident_bytes()
        return used


def heap_reader() -> HeapReader | None:
    """Return a reader, None without glibc."""
    mallinfo = _mallinfo(ctypes.CDLL)
    return None if mallinfo is None else HeapReader(mallinfo)


def native_reader() -> Callable[[], int] | None:
    """Return a reader of what libraries have allocated outside of Python, with Arrow's own pool.

    None without glibc. It works while tracemalloc runs, and keeps the interpreter, so that no other
    thread goes on meanwhile.
    """
    mallinfo = _mallinfo(ctypes.PyDLL)
    return None if mallinfo is None else partial(_native_bytes, mallinfo)


def _native_bytes(mallinfo: Callable[[], _MallInfo]) -> int:
    traced = tracemalloc.get_traced_memory()[0] + tracemalloc.get_tracemalloc_memory()
    return _in_use(mallinfo()) - traced


def _in_use(info: _MallInfo) -> int:
    small = _BLOCK_BYTES * sys.getallocatedblocks()
    return int(info.uordblks + info.hblkhd + small + _arrow_bytes())


def _arrow_bytes() -> int:
    count = getattr(sys.modules.get("pyarrow"), "total_allocated_bytes", None)
    return 0 if count is None else int(count())


def _mallinfo(library: Callable[[None], Any]) -> Callable[[], _MallInfo] | None:
    try:
        mallinfo = library(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo.restype = _MallInfo
    return mallinfo  # type: ignore[no-any-return]


def _shared_bytes() -> int:
    lines = Path("/proc/self/status").read_bytes().splitlines()
    sizes = (line.split()[1] for line in lines if line.startswith(b"RssShmem:"))
    return 2**10 * int(next(sizes, 0))


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_bytes().split()
    return int(pages[1]) * mmap.PAGESIZE
