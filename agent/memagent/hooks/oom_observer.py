"""The allocator's report of a failed allocation: the requested and the free bytes.

1. torch calls observers from inside the failing allocation, with the allocator's lock released and
   the GIL held (c10/cuda/CUDACachingAllocator.cpp). An exception in an observer would replace the
   user's error: ours raises none.
2. An observer can't be removed. So the process gets one, when a run first needs it, and runs
   register listeners with it.
3. Attaching an observer before CUDA is initialized crashed older builds (pytorch 102796, 107330):
   it is attached only then, and only if the function exists.
4. The script may catch the error and continue: a failure is a note, not the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from memagent.hooks.dispatcher import Remove


class AllocationFailure(msgspec.Struct, frozen=True):
    """Sizes in bytes; `device` is the CUDA index, None for the host."""

    asked_bytes: int | None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


Listener = Callable[[AllocationFailure], None]

_listeners: list[Listener] = []
_observed_cores: list[Any] = []
"""The `torch._C` that has our observer; several only in tests."""

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUESTED = r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)"
"""The messages of CUDACachingAllocator.cpp and alloc_cpu.cpp."""


def add_failure_listener(torch: Any, listener: Listener) -> Remove:
    """Call `listener` with each failed CUDA allocation of this process, on the failing thread.

    Without CUDA it is never called.
    """
    core = torch._C
    attach = getattr(core, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or not torch.cuda.is_initialized():
        return lambda: None
    if not any(core is observed for observed in _observed_cores):
        attach(_observe)
        _observed_cores.append(core)
    _listeners.append(listener)

    def remove() -> None:
        with contextlib.suppress(ValueError):
            _listeners.remove(listener)

    return remove


def parse_failure(error: BaseException) -> AllocationFailure:
    """Read the message of an out-of-memory error; asked_bytes is None if it has no size."""
    match = re.search(_REQUESTED, str(error))
    return AllocationFailure(asked_bytes=int(float(match[1]) * _UNITS[match[2]]) if match else None)


def _observe(device: int, requested: int, total: int, free: int) -> None:
    failure = AllocationFailure(requested, device, total, free)
    for listener in list(_listeners):
        with contextlib.suppress(Exception):
            listener(failure)
