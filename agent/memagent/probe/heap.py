"""Bytes that this process has allocated and not freed, whatever its pages hold.

Resident memory stays the same while a leak fills what imports and warm-up have freed, for tens of
MiB. glibc and Python count what is allocated:

1. `mallinfo2` (glibc 2.33) sums up all arenas and mapped blocks: tensors, arrays, long strings.
2. `sys.getallocatedblocks` counts Python's own small objects.

A reading takes from 0.03 ms after `import torch` to 40 ms with 130,000 free pieces, which glibc
walks through: it's for rare use.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_BLOCK_BYTES = 64
"""About the size of a small object."""
_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def heap_reader() -> Callable[[], int] | None:
    """Return a function that reads the allocated bytes, None without glibc."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo.restype = _MallInfo

    def read() -> int:
        info = mallinfo()
        return int(info.uordblks + info.hblkhd + _BLOCK_BYTES * sys.getallocatedblocks())

    return read
