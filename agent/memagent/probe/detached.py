"""Child processes that the script doesn't notice: no hook, no signal, nothing for its `os.wait()`.

On Linux:

1. `fork_detached` forks twice. The first child is reaped at once, so that the system adopts the
   second, which is nobody's child any more. The second fork is a vfork, which copies no page table:
   that takes a tenth of a second per GiB on slow machines. Its caller waits in the kernel while the
   new process runs in the same memory, and is killed there, so that it never returns: by this
   process, or by the system if this process ends first. Its memory goes on living in the new one,
   so the system mustn't write the end of its thread there: see `_SET_TID_ADDRESS`.
2. The fork is libc's: `os.fork` would call the script's hooks (`os.register_at_fork`). Python's
   state in the child is renewed by the function that `os.fork` calls too. No bytecode may run
   between the two: it could wait for a lock that another thread held. So C code, a `map`, calls
   them. Hooks for children run in the child, when its output has been dropped.
3. The end of a child sends SIGCHLD. While the first child lives, the default action replaces the
   script's handler, and ignores the signal. If a child of the script ends meanwhile, the signal is
   repeated afterwards.

And children of the script that don't notice imports of memagent. A fork copies the locks of modules
that another thread is importing, and a child that imports one of them would hang. So a fork, also a
detached one, waits until the imports inside of `forks_wait` have ended, for MAX_WAIT_S at most: the
script may fork while it imports what the other thread waits for.
"""

from __future__ import annotations

import _imp
import ctypes
import gc
import operator
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

_SIGACTION_BYTES = 256
"""More than `struct sigaction` has on any system. Zeros are the default action."""
_PR_SET_PDEATHSIG = 1
_SET_TID_ADDRESS = {"x86_64": 218, "aarch64": 96, "riscv64": 96}.get(platform.machine(), -1)
"""The system call that says where the kernel writes 0 when a thread ends: libc's id of the thread.
Recursive mutexes and rwlocks compare it. The dynamic linker's and setlocale's would then hang.
https://man7.org/linux/man-pages/man2/set_tid_address.2.html
"""
_LOCK_TIMEOUT_S = 5.0
_CAN_SKIP_HOOKS = (
    sys.implementation.name == "cpython"
    and sys.version_info < (3, 15)  # what follows was read in the sources up to 3.14
    and "t" not in getattr(sys, "abiflags", "")  # built without the GIL
)
_lock = threading.Lock()
"""For `without_child_signals`: two threads at once would restore each other's default action."""
_call = operator.methodcaller("__call__")
MAX_WAIT_S = 1.0
_imports = threading.RLock()


def fork_detached() -> bool:
    """Fork a process that is not a child of this one. Return True there, and False here.

    It leads a session of its own, and its standard streams are the null device. Raises OSError.
    """
    libc = _libc()
    reader, writer = os.pipe()
    with (
        _no_import(),
        os.fdopen(reader, "rb", buffering=0) as started,
        os.fdopen(writer, "wb", buffering=0) as start,
        open(os.devnull, "r+b", buffering=0) as null,  # noqa: PTH123
        without_child_signals(),
    ):
        pid = fork_without_hooks(
            partial(libc.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            partial(libc.syscall, _SET_TID_ADDRESS, None),
            libc.vfork,
            libc.setsid,
            *(partial(libc.dup2, null.fileno(), stream) for stream in (0, 1, 2)),
            partial(libc.write, writer, b".", 1),
        )
        start.close()
        if pid:
            started.read(1)
            os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # the script ignores SIGCHLD, or reaps everything
                os.waitpid(pid, 0)
    return pid == 0


def fork_without_hooks(*steps: Callable[[], None]) -> int:
    """Fork without calling hooks in this process; return what `os.fork` returns.

    The child calls `steps`, which are C functions, before it runs any Python. Raises OSError.
    """
    if not _CAN_SKIP_HOOKS:
        pid = os.fork()
        for step in steps if pid == 0 else ():
            step()
        return pid
    libc = _libc()
    renew_state = ctypes.pythonapi.PyOS_AfterFork_Child
    renew_state.restype = None
    collects_garbage = gc.isenabled()
    gc.disable()  # a finalizer is Python, too
    _imp.acquire_lock()
    # The first result that isn't 0 or None ends the iteration: the parent's process id, or -1.
    pid = next(filter(None, map(_call, (libc.fork, *steps, renew_state))), 0)
    if pid:
        _imp.release_lock()  # the child's state has a new one
    if collects_garbage:
        gc.enable()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


@contextmanager
def without_child_signals() -> Iterator[None]:
    """Keep SIGCHLD from the script's handler while a child of memagent ends."""
    ignored = (signal.SIG_DFL, signal.SIG_IGN)
    if sys.platform != "linux" or signal.getsignal(signal.SIGCHLD) in ignored:
        yield
        return
    is_alone = _lock.acquire(timeout=_LOCK_TIMEOUT_S)
    handler = signal.getsignal(signal.SIGCHLD)
    ended_before = _ended_child()
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    default = ctypes.create_string_buffer(_SIGACTION_BYTES)
    _libc().sigaction(signal.SIGCHLD, default, action)
    try:
        yield
    finally:
        # the script may have set another handler meanwhile
        if signal.getsignal(signal.SIGCHLD) is handler:
            _libc().sigaction(signal.SIGCHLD, action, None)
        if is_alone:
            _lock.release()
        if _ended_child() not in (None, ended_before):
            os.kill(os.getpid(), signal.SIGCHLD)


def _ended_child() -> int | None:
    """Return a child that has ended and waits to be reaped."""
    try:
        result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return result.si_pid if result else None


@cache
def _libc() -> Any:
    """Return libc, whose functions are called without releasing the GIL."""
    libc = ctypes.PyDLL(None, use_errno=True)
    for name in ("prctl", "syscall", "vfork", "setsid", "dup2", "write"):
        getattr(libc, name).restype = None
    return libc


@contextmanager
def forks_wait() -> Iterator[None]:
    """Make forks of the script wait until the imports inside have ended."""
    with _imports:
        yield


def _wait_for_imports() -> None:
    _imports.acquire(timeout=MAX_WAIT_S)


def _end_wait() -> None:
    with suppress(RuntimeError):  # not acquired in time
        _imports.release()


@contextmanager
def _no_import() -> Iterator[None]:
    """Do for a fork without hooks what they do for others."""
    _wait_for_imports()
    try:
        yield
    finally:
        _end_wait()  # a child has another lock, which is free


def _renew_lock() -> None:
    global _imports  # noqa: PLW0603
    _imports = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_wait_for_imports, after_in_parent=_end_wait, after_in_child=_renew_lock
    )
