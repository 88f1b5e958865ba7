"""How the process ends: uncaught exceptions, normal exit, and telling out-of-memory from the rest.

1. An uncaught exception of the main thread is told to `sys.excepthook`. It goes on to whoever had the hook before.
2. `sys.exit(1)` is not: Python ends on SystemExit without a word to any hook. Hence `sys.exit` itself is wrapped. `raise SystemExit(1)`
   stays unseen.
3. Neither is that of another thread, which `threading.excepthook` is told of. The process goes on, and so may the training.
4. `atexit` comes last. What came before by 2 or 3 was the end if no step followed: the caller knows.

What is wrapped is put back on removal; below a wrapper that somebody else has laid over it meanwhile it stays, and does nothing.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

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
    return "oom" if any(map(_is_out_of_memory, chain_of(error))) else "failed"


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and so on."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or link.__context__


def describe_error(error: BaseException) -> str:
    """Type and message, without the traceback, cut to what the wire takes."""
    return f"{type(error).__name__}: {' '.join(_text(error).split())}"[:2000]


def watch_exit(
    on_error: Callable[[BaseException], None],
    on_exit: Callable[[], None],
    *,
    on_warning: Callable[[BaseException, int], None],
) -> Remove:
    """Call `on_error` for an uncaught exception of the main thread, before it is printed, and `on_exit` at interpreter exit.

    `on_warning(error, thread)` is called for what may be the end and may not: `sys.exit` on the main thread, and the uncaught exception
    that ended another thread, each with the identity of the thread.
    """

    def told_main(
        _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
    ) -> None:
        with suppress(
            KeyboardInterrupt
        ):  # a second Ctrl-C: whoever presses it wants the end, and the traceback that follows
            on_error(error)

    def told_thread(arguments: Any) -> None:
        error, thread = arguments.exc_value, arguments.thread
        if error is not None and not isinstance(error, SystemExit) and thread is not None:
            on_warning(error, thread.ident)

    def leaving(*arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            error = SystemExit(*arguments)
            error.__context__ = sys.exc_info()[1]
            on_warning(error, threading.get_ident())

    removes = [
        _lay_over(sys, "excepthook", told_main),
        _lay_over(sys, "exit", leaving),
        _lay_over(threading, "excepthook", told_thread),
    ]
    atexit.register(on_exit)

    def remove() -> None:
        for take_off in removes:
            take_off()
        atexit.unregister(on_exit)

    return remove


@dataclass(frozen=True, eq=False)
class _Layer:
    """What a wrapper of ours calls first, none once it was removed, and what it covers."""

    listeners: list[Callable[..., None]]
    covered: Callable[..., Any]


_layers: weakref.WeakKeyDictionary[Callable[..., Any], _Layer] = weakref.WeakKeyDictionary()


def _lay_over(owner: Any, name: str, listener: Callable[..., None]) -> Remove:
    """Call `listener` before the function `name` of `owner`, with the same arguments."""
    layer = _Layer([listener], getattr(owner, name))

    @functools.wraps(layer.covered)
    def wrapper(*arguments: Any) -> Any:
        for tell_it in list(layer.listeners):
            tell_it(*arguments)
        return layer.covered(*arguments)

    _layers[wrapper] = layer
    setattr(owner, name, wrapper)

    def remove() -> None:
        layer.listeners.clear()
        while (top := _layers.get(getattr(owner, name))) is not None and not top.listeners:
            setattr(owner, name, top.covered)

    return remove


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the script's own class, and it has enough trouble
        return "(its message cannot be read)"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError | SystemError | ImportError):
        return False
    text = _text(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY_TEXTS)
