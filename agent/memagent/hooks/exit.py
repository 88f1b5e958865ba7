"""Hooks on the end of the process: uncaught errors, exits, `os.exec*`, and the normal end.

1. `sys.excepthook` gets an uncaught exception of the main thread. The hook that was there before
   gets it next.
2. It doesn't get `sys.exit(1)`: Python handles SystemExit without any hook. So `sys.exit` itself is
   wrapped. `raise SystemExit(1)` goes unnoticed.
3. `threading.excepthook` gets that of another thread. The process continues, and the training may.
4. `os._exit` ends the process at once, without `atexit`. It is wrapped too, and waits some seconds
   for the run to end on another thread: this one may hold any lock. So are `os.execv` and
   `os.execve`, which the other functions of that family call, if the program exists.
5. A signal that ends the process is watched (`memagent.hooks.termination`). A script that sends
   itself one must not continue after the call: `os.kill` and `signal.raise_signal` are wrapped.
6. `atexit` comes last. An event of 2 or 3 was the end if no step followed: the caller decides.

Wrapped functions are restored on removal. Below a wrapper that other code has added meanwhile, ours
stays and does nothing.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, TracebackType
from typing import Any

import msgspec

from memagent.hooks.dispatcher import Remove
from memagent.hooks.termination import Termination, termination_watcher
from memagent.wire.messages import FinalStatus

MAX_ERROR_LENGTH = 2000
"""Characters of an error that the wire takes."""
EXEC_FUNCTIONS = ("execv", "execve")
_NATIVE = ("kill", "raise_signal")
OS_EXIT_DEADLINE_S = 4.0
"""Longest that `os._exit` is delayed; a run normally ends within `FINISH_DEADLINE_S`."""
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "failed to allocate",
    "memoryerror",  # a MemoryError that passed through C++
)


_STOP_CODES = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
"""Exit statuses by which handlers of signals say, as shells do, which one it was."""

_STOP_ERRORS = ("TrialPruned",)
"""Errors by which a script ends a run as planned: Optuna's for a trial that isn't promising."""


def status_of(error: BaseException | None) -> FinalStatus:
    """Return the status of a run that ends by this error.

    That is `oom` for an out-of-memory error, `stopped` for KeyboardInterrupt, a trial that Optuna
    prunes and the exit status of a signal, `failed` for other errors, and `completed` for None.

    torch raises OutOfMemoryError for devices, and a RuntimeError with such a text from its CPU
    allocator (c10/core/impl/alloc_cpu.cpp). An error raised from an out-of-memory error, or while
    handling one, counts as one.
    """
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "completed"
    if any(map(_is_out_of_memory, error_chain(error))):
        return "oom"
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ in _STOP_ERRORS:
        return "stopped"
    is_stop = isinstance(error, SystemExit) and error.code in _STOP_CODES
    return "stopped" if is_stop else "failed"


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the one that it was raised from or while handling, and so on."""
    # a script may set __cause__ so that the chain is a cycle
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        yield link
        visited.add(id(link))
        link = link.__cause__ or link.__context__


def describe_error(error: BaseException) -> str:
    """Return type and message without the traceback, truncated for the wire."""
    return f"{type(error).__name__}: {' '.join(_message(error).split())}"[:MAX_ERROR_LENGTH]


def install_exit_hooks(
    on_error: Callable[[BaseException], None],
    on_exit: Callable[[], None],
    *,
    on_possible_exit: Callable[[BaseException, int], None],
    on_termination: Callable[[Termination], None] = lambda _: None,
) -> Remove:
    """Call `on_error` for an uncaught exception of the main thread, before it is printed.

    `on_exit` is called at interpreter exit and before `os._exit`. `on_possible_exit(error, thread)`
    is called for `sys.exit` on the main thread, for `os._exit`, and for the uncaught exception that
    ended another thread. `on_termination` is called for a signal that ends the process, or that a
    handler of the script's has got; on another thread.
    """
    watcher = termination_watcher()

    def main_thread_error(
        _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
    ) -> None:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C: print the traceback and end
            on_error(error)
        if isinstance(error, KeyboardInterrupt):
            _note_interrupt()

    def other_thread_error(arguments: Any) -> None:
        error, thread = arguments.exc_value, arguments.thread
        # Python ignores SystemExit in a thread, and may call the hook without a thread
        if error is not None and not isinstance(error, SystemExit) and thread is not None:
            on_possible_exit(error, thread.ident)

    def sys_exit(*arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            error = SystemExit(*arguments)
            # sys.exit in an except block: the handled error may be an out-of-memory error
            error.__context__ = sys.exc_info()[1]
            on_possible_exit(error, threading.get_ident())

    def os_exit(status: int) -> None:
        on_possible_exit(SystemExit(status), threading.get_ident())
        end_on_thread()

    def os_exec(path: Any, *_arguments: Any, **_keywords: Any) -> None:
        if is_program(path):
            end_on_thread()

    def own_kill(process: Any = None, number: Any = None, *_arguments: Any) -> None:
        is_own = process == os.getpid() and isinstance(number, int)
        if watcher is not None and is_own and watcher.is_ending(number):
            watcher.end_by_own(number)

    def own_signal(number: Any = None, *_arguments: Any) -> None:
        own_kill(os.getpid(), number)

    def end_on_thread() -> None:
        end = threading.Thread(target=on_exit, name="memagent-exit", daemon=True)
        with suppress(RuntimeError):  # no threads any more: the interpreter is shutting down
            end.start()
            end.join(OS_EXIT_DEADLINE_S)

    removes = [
        _wrap(sys, "excepthook", main_thread_error),
        _wrap(sys, "exit", sys_exit),
        _wrap(os, "_exit", os_exit),
        *(_wrap(os, name, os_exec) for name in EXEC_FUNCTIONS if hasattr(os, name)),
        _wrap(threading, "excepthook", other_thread_error),
        _wrap(os, "kill", own_kill),
        _wrap(signal, "raise_signal", own_signal),
    ]
    if watcher is not None:
        removes.append(watcher.add(on_termination))
    atexit.register(on_exit)

    def remove() -> None:
        for remove_wrapper in removes:
            remove_wrapper()
        atexit.unregister(on_exit)

    return remove


def _note_interrupt() -> None:
    """Have the process end by SIGINT, as Python does after an uncaught KeyboardInterrupt.

    It notes the interrupt when the script's code ends, and forgets it once text is executed: so
    does each dataclass of a module that is imported here (run_eval_code_obj in pythonrun.c).
    """
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt", {})  # noqa: S102  # nosec B102


def is_program(path: Any) -> bool:
    """Return whether `os.execv(path, ...)` will probably succeed; `os.execvp` tries many paths."""
    return isinstance(path, int) or (os.path.isfile(path) and os.access(path, os.X_OK))  # noqa: PTH113


class _Wrapper(msgspec.Struct, frozen=True, eq=False):
    """The listener of a wrapper (none after its removal), and the function that it wraps."""

    listeners: list[Callable[..., None]]
    wrapped: Callable[..., Any]


_wrappers: weakref.WeakKeyDictionary[Callable[..., Any], _Wrapper] = weakref.WeakKeyDictionary()


def _function(wrapper: _Wrapper) -> Callable[..., Any]:
    """Return a function that calls the listeners, and then the wrapped one."""

    @functools.wraps(wrapper.wrapped)
    def function(*arguments: Any, **keywords: Any) -> Any:
        # a copy: a listener may end the run, which removes it from the list
        for call in list(wrapper.listeners):
            call(*arguments, **keywords)
        return wrapper.wrapped(*arguments, **keywords)

    return function


def _native(wrapper: _Wrapper) -> Callable[..., Any]:
    """Return a callable that calls the listeners, and then a function of C's from C.

    A handler of a signal sees the frame in which the signal comes, and an error's traceback all
    frames that it passes: here none of memagent's. The function must return None.
    """

    class function:  # noqa: N801 - in the place of a function
        __slots__ = ()
        __init__ = wrapper.wrapped

        def __new__(cls, *arguments: Any) -> Any:
            for call in list(wrapper.listeners):
                call(*arguments)
            return object.__new__(cls)

    return functools.update_wrapper(function, wrapper.wrapped, updated=())


def _wrap(owner: Any, name: str, listener: Callable[..., None]) -> Remove:
    """Call `listener` before the function `name` of `owner`, with the same arguments.

    The newest listener is called first.
    """
    top = getattr(owner, name)
    wrapper = _wrappers.get(top)
    if wrapper is None:
        wrapper = _Wrapper([], top)
        returns_none = name in _NATIVE and isinstance(top, BuiltinFunctionType)
        function = _native(wrapper) if returns_none else _function(wrapper)
        _wrappers[function] = wrapper
        setattr(owner, name, function)
    wrapper.listeners.insert(0, listener)

    def remove() -> None:
        wrapper.listeners.remove(listener)
        # Ours may lie below a wrapper of other code, which is taken off before or stays.
        while (top := _wrappers.get(getattr(owner, name))) is not None and not top.listeners:
            setattr(owner, name, top.wrapped)

    return remove


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a class of the script's, whose __str__ fails
        return "(its message cannot be read)"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError | SystemError | ImportError):
        return False
    message = _message(error).lower()
    return any(text in message for text in _OUT_OF_MEMORY_TEXTS)
