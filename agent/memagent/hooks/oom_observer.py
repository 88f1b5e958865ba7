"""The allocator's own word on an out-of-memory: how much was asked for and what the device had left, before Python knows of it.

1. torch calls observers from inside the failing allocation, with the allocator's lock released and the GIL held
   (c10/cuda/CUDACachingAllocator.cpp). An exception in one would replace the user's error: nothing leaves ours.
2. An observer can't be taken off again, so the process gets one, the first time a run needs it; runs come and go behind it.
3. Attaching before CUDA is initialised crashed older builds (pytorch 102796, 107330): only then, and only where the function exists.
4. An observed failure may be survived (the script catches the error and goes on): it is a note, not the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memagent.hooks.step import Remove


@dataclass(frozen=True)
class AllocationFailure:
    """Sizes in bytes; `device` is the CUDA index, None for the host."""

    asked_bytes: int | None
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


Listener = Callable[[AllocationFailure], None]

_listeners: list[Listener] = []
_observed_cores: list[Any] = []
"""The `torch._C` that has our observer: one for good, but for tests that bring their own."""

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ASKED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)")
"""As CUDACachingAllocator.cpp and alloc_cpu.cpp word it."""


def watch_failures(torch: Any, listener: Listener) -> Remove:
    """Call `listener` with each failed CUDA allocation of this process, on the thread that asked; without CUDA, never."""
    core = torch._C
    attach = getattr(core, "_cuda_attach_out_of_memory_observer", None)
    if attach is None or not torch.cuda.is_initialized():
        return lambda: None
    if not any(core is seen for seen in _observed_cores):
        attach(_observe)
        _observed_cores.append(core)
    _listeners.append(listener)

    def remove() -> None:
        with contextlib.suppress(ValueError):
            _listeners.remove(listener)

    return remove


def failure_in(error: BaseException) -> AllocationFailure:
    """What the message of an out-of-memory error says; asked_bytes is None where it says nothing."""
    found = _ASKED.search(str(error))
    return AllocationFailure(asked_bytes=int(float(found[1]) * _UNITS[found[2]]) if found else None)


def _observe(device: int, asked: int, total: int, free: int) -> None:
    for listener in list(_listeners):
        with contextlib.suppress(Exception):
            listener(
                AllocationFailure(
                    asked_bytes=asked, device=device, total_bytes=total, free_bytes=free
                )
            )
