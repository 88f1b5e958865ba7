"""How the process ends: uncaught exceptions, normal exit, and telling out-of-memory from the rest.

`sys.excepthook` and `atexit` are the two ways out that a script takes by itself; the exception goes on to whoever had the hook before.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import TracebackType

from memagent.hooks.step import Remove
from memagent.wire.messages import FinalStatus

_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "failed to allocate",
    "memoryerror",  # a MemoryError that passed through C++ on its way
)


def status_of(error: BaseException | None) -> FinalStatus:
    """`oom` for an out-of-memory error of Python, the host's allocator or a device's, `failed` for others, `completed` for None.

    torch raises OutOfMemoryError for devices, and a RuntimeError whose text says so from its CPU allocator
    (c10/core/impl/alloc_cpu.cpp). An error raised from, or while handling, an out-of-memory error counts as one.
    """
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "completed"
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if _is_out_of_memory(link):
            return "oom"
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return "failed"


def describe_error(error: BaseException) -> str:
    """Type and message, without the traceback, cut to what the wire takes."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:2000]


def watch_exit(on_error: Callable[[BaseException], None], on_exit: Callable[[], None]) -> Remove:
    """Call `on_error` for an uncaught exception of the main thread, before it is printed, and `on_exit` at interpreter exit."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        on_error(error)
        previous(kind, error, trace)

    def remove() -> None:
        if sys.excepthook is hook:  # somebody who wrapped ours meanwhile keeps theirs
            sys.excepthook = previous
        atexit.unregister(on_exit)

    sys.excepthook = hook
    atexit.register(on_exit)
    return remove


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError | SystemError | ImportError):
        return False
    text = str(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY_TEXTS)
