"""Signals that end the process, seen without a handler in Python.

1. `faulthandler` has a handler in C, which writes the stack to a file: here to a pipe, whose other
   end a thread reads. `signal.getsignal` and the handlers of the script stay as they were.
2. If the signal's action is the default, the listeners end the run, and then the thread has the
   process end by the same signal. The script continues for that long. A handler of the script's is
   called as before, and the listeners only learn of the signal.
3. A signal that is ignored, or that a handler in C takes, is left alone. So is a handler that was
   set since, or another file that was given to `faulthandler`: nothing is restored over them.
4. A script that kills itself must not continue behind that call. So `os.kill` and
   `signal.raise_signal` are wrapped (`memagent.hooks.exit`), and have the run ended first.
5. A forked child has the default action again, for a signal in its first moment, too. A script that
   closes every descriptor ends the thread, which restores it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from memagent.hooks.dispatcher import Remove

SIGNALS = ("SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2")
"""Sent by schedulers, launchers, terminals and limits; the user's signals are fatal by default."""
END_DEADLINE_S = 4.0
"""Longest that the signal's action is delayed."""
_MIN_DESCRIPTOR = 400
"""Above the numbers that a script gets for its own files: its stack is written to none of them."""
_SIGACTION_BYTES = 256
_STACK_TIMEOUT_MS = 20
_FRAME = re.compile(r'  File "(.+)", line (\d+) in ')


class Termination(msgspec.Struct, frozen=True):
    """A signal: its name, the stack that it came in, and who takes it."""

    name: str
    frames: tuple[tuple[str, int], ...] = ()
    """Files and lines, innermost first."""
    is_handled: bool = False
    """A handler of the script's has it, and may let the process live."""
    is_own: bool = False
    """The script sends it to itself."""


def frames_of(stack: str) -> tuple[tuple[str, int], ...]:
    """Return files and lines of a stack that faulthandler wrote, innermost first."""
    return tuple((path, int(line)) for path, line in _FRAME.findall(stack))


class _Pipe:
    """The file that faulthandler writes to. It alone refers to this: gone, if it has another."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
        self.writer = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
        os.close(reader)
        os.close(writer)
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)

    def fileno(self) -> int:
        return self.writer

    def flush(self) -> None:
        """Do nothing: faulthandler calls it."""


class _Watch(msgspec.Struct, eq=False):
    """One signal that faulthandler's handler takes, with `handler` as its address."""

    number: int
    is_handled: bool
    reader: int
    writer: int
    inode: int
    file: weakref.ref[_Pipe]
    handler: bytes


class TerminationWatcher:
    """The watched signals of the process, while it has listeners."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[Termination], None]] = {}
        self._watches: dict[int, _Watch] = {}
        self._lock = threading.RLock()
        self._masks = threading.local()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_go, after_in_child=self._forget
        )

    def add(self, listener: Callable[[Termination], None]) -> Remove:
        """Call `listener` for signals that end the process, on a thread. Return what ends that."""
        key = object()
        with self._lock:
            if not self._listeners:
                self._install()
            self._listeners[key] = listener

        def remove() -> None:
            with self._lock:
                if self._listeners.pop(key, None) and not self._listeners:
                    self._uninstall()

        return remove

    def is_ending(self, number: int) -> bool:
        """Return whether this signal is watched, and would end the process."""
        watch = self._watches.get(number)
        return watch is not None and not watch.is_handled and _is_in_place(watch)

    def _release(self, watch: _Watch) -> None:
        """Give the signal its action back, unless that was done."""
        with self._lock:
            if self._watches.get(watch.number) is watch:
                del self._watches[watch.number]
                if not _restore(watch):
                    # ends the thread; the pipe stays, since its handler may be put back
                    with suppress(OSError):
                        os.write(watch.writer, b"\0")

    def _install(self) -> None:
        caught = _caught_signals()
        for name in SIGNALS:
            number = int(getattr(signal, name))
            action = signal.getsignal(number)
            is_default = action == signal.SIG_DFL and not caught >> (number - 1) & 1
            # what a script does at a user's signal may have nothing to do with its end
            is_handled = callable(action) and not name.startswith("SIGUSR")
            if is_default or is_handled:
                with suppress(OSError, RuntimeError, ValueError):
                    self._watches[number] = _watch(number, is_handled=is_handled)
        if self._watches:
            thread = threading.Thread(
                target=self._wait, args=(dict(self._watches),), name="memagent-signals", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads
                self._uninstall()

    def _uninstall(self) -> None:
        for watch in list(self._watches.values()):
            self._release(watch)

    def _wait(self, watches: dict[int, _Watch]) -> None:
        poll = select.poll()
        by_reader = {watch.reader: watch for watch in watches.values()}
        for reader in by_reader:
            poll.register(reader, select.POLLIN)
        while by_reader:
            for reader, _event in poll.poll():
                watch = by_reader[reader]
                stack = _read_stack(reader)
                if not stack:  # released, or closed by the script
                    self._release(watch)
                if not stack or not watch.is_handled:
                    poll.unregister(reader)
                    _close(reader, by_reader.pop(reader).inode)
                if stack:
                    self._handle(watch, frames_of(stack))

    def end_by_own(self, number: int) -> None:
        """Have the listeners end the run, before the script sends itself this signal."""
        watch = self._watches.get(number)
        if watch is not None:
            self._end_by(watch, Termination(signal.Signals(number).name, is_own=True))

    def _end_by(self, watch: _Watch, termination: Termination) -> None:
        self._tell(termination, END_DEADLINE_S)
        self._release(watch)

    def _handle(self, watch: _Watch, frames: tuple[tuple[str, int], ...]) -> None:
        name = signal.Signals(watch.number).name
        if watch.is_handled:
            self._tell(Termination(name, frames, is_handled=True), timeout_s=0.0)
            return
        self._end_by(watch, Termination(name, frames))
        os.kill(os.getpid(), watch.number)

    def _tell(self, termination: Termination, timeout_s: float) -> None:
        def tell() -> None:
            for listener in list(self._listeners.values()):
                listener(termination)

        thread = threading.Thread(target=tell, name="memagent-exit", daemon=True)
        with suppress(RuntimeError):  # no threads any more: the interpreter is shutting down
            thread.start()
            thread.join(timeout_s)

    def _hold(self) -> None:
        """Hold the signals back on a thread that forks: a child's would count as the parent's."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, list(self._watches))

    def _let_go(self) -> None:
        # a thread that was about to fork when these hooks came has held nothing back
        mask = self._masks.__dict__.pop("before", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _forget(self) -> None:
        """Give a forked child the default actions: it has no thread that reads."""
        self._lock = threading.RLock()
        self._listeners = {}
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            _restore(watch)
            _close(watch.reader, watch.inode)
        self._let_go()


@cache
def termination_watcher() -> TerminationWatcher | None:
    """Return the process's watcher, or None on other systems than Linux."""
    return TerminationWatcher() if sys.platform == "linux" else None


def _watch(number: int, *, is_handled: bool) -> _Watch:
    import faulthandler  # the script's process has it loaded in most cases

    pipe = _Pipe()
    faulthandler.register(number, pipe, all_threads=False, chain=is_handled)
    return _Watch(
        number,
        is_handled,
        pipe.reader,
        pipe.writer,
        os.fstat(pipe.reader).st_ino,
        weakref.ref(pipe),
        _handler_of(number),
    )


def _restore(watch: _Watch) -> bool:
    """Give the signal its action back, unless another one was set since."""
    import faulthandler

    is_in_place = _is_in_place(watch)
    if is_in_place:
        faulthandler.unregister(watch.number)
        _close(watch.writer, watch.inode)
    return is_in_place


def _is_in_place(watch: _Watch) -> bool:
    return watch.file() is not None and _handler_of(watch.number) == watch.handler


def _read_stack(reader: int) -> str:
    """Return what faulthandler has written, up to a pause; empty at the end of the pipe."""
    parts = []
    poll = select.poll()
    with suppress(OSError, ValueError):
        poll.register(reader, select.POLLIN)
        while part := os.read(reader, 65_536):
            parts.append(part)
            if not poll.poll(_STACK_TIMEOUT_MS):
                break
    return b"".join(parts).replace(b"\0", b"").decode(errors="replace")


def _handler_of(number: int) -> bytes:
    """Return the address of the handler in C, the first field of glibc's and musl's sigaction."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    _libc().sigaction(number, None, action)
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]


@cache
def _libc() -> Any:
    return ctypes.PyDLL(None)


def _caught_signals() -> int:
    """Return the signals that have a handler, in Python or C, as the kernel's bits."""
    try:
        with Path("/proc/self/status").open() as status:
            return next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return -1  # unknown: nothing is watched


def _close(descriptor: int, inode: int) -> None:
    """Close an end of the pipe, unless the script has, and the number is another file's."""
    with suppress(OSError):
        if os.fstat(descriptor).st_ino == inode:
            os.close(descriptor)
