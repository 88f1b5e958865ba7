"""Pauses of tracemalloc, for memagent's own readings: small blocks allocated in one aren't traced.

To note an allocation takes microseconds, so a reading takes 10 to 25 times as long while
tracemalloc runs. No function pauses it, but its hooks are allocators of the interpreter. So:

1. New blocks come from the allocator below the hooks. It ignores the context, which is the hooks'.
2. Blocks are still resized and freed by the hooks: what the script frees in another thread must not
   stay in the trace.

A step that isn't traced is such a pause, too (`trace_schedule`).

Objects that a pause has freed may be kept in the interpreter's lists of free objects, where the
script finds them: it would keep them untraced. `clear_free_lists` gives them back.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sysconfig
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from memagent.leaks.cyclic_garbage import make_old, may_collect

_DOMAINS = (1, 2)
"""`PYMEM_DOMAIN_MEM` and `PYMEM_DOMAIN_OBJ`. The third one, for blocks of more than 512 bytes, is
used without the interpreter's lock: its allocator can't be exchanged while other threads run."""

_HAS_LOCK = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""An interpreter for free threads may take its lock, too, but not for good."""
_FIELDS = ("context", "malloc", "calloc", "realloc", "free")


class _Allocator(ctypes.Structure):
    """`PyMemAllocatorEx` of the interpreter."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in _FIELDS)


class TracePause:
    """Starts tracemalloc so that it can be paused."""

    plain: ClassVar[dict[int, _Allocator]] = {}
    """The allocators below the hooks. None if they need their context, as those for debugging, or
    if threads allocate without a lock: then nothing pauses."""
    hooks: ClassVar[dict[int, tuple[int | None, ...]]] = {}
    """Those with the hooks."""
    paused: ClassVar[dict[int, tuple[_Allocator, _Allocator]]] = {}
    """Those of a pause of whole steps, and what they replace."""

    @classmethod
    def start_tracing(cls, frames: int) -> None:
        """Start tracemalloc, which must not run yet."""
        plain = {domain: _allocator_of(domain) for domain in _DOMAINS}
        can_pause = _HAS_LOCK and not any(item.context for item in plain.values())
        cls.plain = plain if can_pause else {}
        tracemalloc.start(frames)
        cls.hooks = {domain: _values(_allocator_of(domain)) for domain in _DOMAINS}

    @classmethod
    def is_alone(cls) -> bool:
        """Return False if another tool has hooked the allocators since: it must see all blocks."""
        return all(_values(_allocator_of(domain)) == of for domain, of in cls.hooks.items())

    @classmethod
    def pause(cls) -> bool:
        """Trace no new blocks until `resume`. Return False if that can't be.

        What was traced is only freed by the hooks, not resized: a list that is lengthened in such
        a step would count as made in it.
        """
        with _lock:
            if not cls.plain or not tracemalloc.is_tracing() or not cls.is_alone():
                return False
            for domain, plain in cls.plain.items():
                hooked = _allocator_of(domain)
                names = (hooked.context, plain.malloc, plain.calloc, plain.realloc, hooked.free)
                cls.paused[domain] = hooked, _Allocator(*names)
                _set_allocator(domain, cls.paused[domain][1])
            return True

    @classmethod
    def resume(cls) -> None:
        """End the pause, unless tracemalloc was stopped or another tool has hooked since."""
        with _lock:
            _restore(cls.paused)


@contextmanager
def untraced() -> Iterator[None]:
    """Leave what is allocated meanwhile out of the trace, also by other threads.

    Two threads may be in one at a time: the last one ends it.
    """
    thread = threading.get_ident()
    try:
        with _lock:
            if not _UNTRACED:
                _leave_out()
            _UNTRACED.append(thread)
        yield
    finally:
        with _lock:
            # a signal handler may have raised before it was noted
            if thread in _UNTRACED:
                _UNTRACED.remove(thread)
            if not _UNTRACED:
                _restore(_REPLACED)


def _leave_out() -> None:
    """Note all allocators before the first is exchanged: an interrupted exchange can be undone."""
    _restore(_REPLACED)
    if tracemalloc.is_tracing() and TracePause.is_alone():
        for domain, plain in TracePause.plain.items():
            hooked = _allocator_of(domain)
            _REPLACED[domain] = hooked, _without_hooks(hooked, plain)
        for domain, (_, paused) in _REPLACED.items():
            _set_allocator(domain, paused)


def _restore(replaced: dict[int, tuple[_Allocator, _Allocator]]) -> None:
    for domain, (hooked, paused) in replaced.items():
        # tracemalloc may have been stopped, and started again
        if _values(_allocator_of(domain)) == _values(paused):
            _set_allocator(domain, hooked)
    replaced.clear()


def _end_of_other_threads() -> None:
    """Forget, in a forked process, the threads that it doesn't have."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    _UNTRACED[:] = [thread for thread in _UNTRACED if thread == threading.get_ident()]
    if not _UNTRACED:
        _restore(_REPLACED)


_lock = threading.RLock()
"""Held while allocators are exchanged, not for the length of a pause."""
_UNTRACED: list[int] = []
"""Has the thread of each pause."""
_REPLACED: dict[int, tuple[_Allocator, _Allocator]] = {}
"""The allocators with the hooks, and those in their place meanwhile."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_of_other_threads)


def clear_free_lists() -> None:
    """Give back the interpreter's lists of free objects, as a collection of all garbage does.

    It's to follow such a collection: then all else is old, and only new objects are visited.
    """
    make_old()  # else young garbage would be, too
    # what the script has frozen must stay so
    hides_old = not gc.get_freeze_count()
    try:
        if hides_old:
            gc.freeze()
        if hides_old or may_collect():
            gc.collect()
    finally:
        if hides_old:
            gc.unfreeze()


def _without_hooks(hooked: _Allocator, plain: _Allocator) -> _Allocator:
    return _Allocator(hooked.context, plain.malloc, plain.calloc, hooked.realloc, hooked.free)


def _allocator_of(domain: int) -> _Allocator:
    allocator = _Allocator()
    # not CDLL: it would let other threads go on meanwhile
    ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
    return allocator


def _set_allocator(domain: int, allocator: _Allocator) -> None:
    ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(allocator))


def _values(allocator: _Allocator) -> tuple[int | None, ...]:
    return tuple(getattr(allocator, name) for name in _FIELDS)
