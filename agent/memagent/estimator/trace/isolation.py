"""Runs a trace in a child process that can't hurt its parent: bounded in time and memory, killed if it does not end,
silent.

1. On Linux the child is a fork: it has the model, the optimizer and the loss as they are, `__main__` and closures
   included, and copies nothing (pages are shared until written). It never calls CUDA: its device guard is a stub
   (`fake_cuda`), originals are never freed, and it leaves by `os._exit`, so that no destructor of the parent's runs
   there.
2. A fork holds only the thread that forked. Locks that other threads held stay locked: should the child ever wait for
   one, the time limit ends it. The autograd engine refuses a fork of a process that has already run backward on a
   GPU: trace before the first backward (as `attach` does).
3. Elsewhere, and where the engine refuses, the child is a fresh interpreter: for models named by "path.py:factory",
   or that can be pickled by reference without their data.
4. A child that is killed by a signal (torch aborts on some operators) is an error like any other; the caller may try
   other rules.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from memagent.errors import TraceError
from memagent.estimator.trace.events import MemoryEvent, Trace
from memagent.estimator.trace.session import Growth, Job, trace_here

_POLL_S = 0.05
_LENGTH = struct.Struct("<Q")
"""Of the answer that follows it in the pipe."""
_EVENT_FIELDS = tuple(item.name for item in fields(MemoryEvent))


class ChildDiedError(TraceError):
    """The child ended without an answer: killed by a signal, or aborted."""


def can_fork() -> bool:
    """Whether a fork is the way on this system (macOS has fork, but its libraries don't survive it)."""
    return hasattr(os, "fork") and sys.platform == "linux"


class Forked:
    """Work that has begun in a forked child, whose results are bytes, each sent when it is there. Raises OSError where the system refuses
    the fork.

    Results may be asked for on another thread than the one that forked, one after the other; `end` is called once, `cancel` from any.
    """

    def __init__(self, work: Callable[[], Iterable[bytes]]) -> None:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # fork beside threads "may lead to deadlocks": see 2.
            self._pid = os.fork()
        if self._pid == 0:
            _be_child(work, reader, writer)
        os.close(writer)
        self._reader = reader

    def next(self, *, timeout_s: float, limit_growth_bytes: int | None = None) -> bytes | None:
        """What the child sends next, empty when it has ended without, None when time was up first.

        Raises TraceError when it grows by more than the limit.
        """
        growth = Growth(limit_growth_bytes, self._pid)
        until = time.monotonic() + timeout_s
        head = _read(self._reader, _LENGTH.size, until, growth.check)
        return _read(self._reader, _LENGTH.unpack(head)[0], until, growth.check) if head else head

    def end(self) -> int:
        """End the child if it has not ended, and give its exit code (negative: the signal that killed it)."""
        os.close(self._reader)
        self.cancel()
        return os.waitstatus_to_exitcode(_reaped(self._pid))

    def cancel(self) -> None:
        """End the child, and with it those that it forked."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


def trace_in_fork(job: Job, *, timeout_s: float) -> Trace:
    """Run the job in a forked child. Raises TraceError, ChildDiedError among them."""
    begun = Forked(lambda: [_encoded(job)])
    try:
        answer = begun.next(timeout_s=timeout_s, limit_growth_bytes=job.limit_growth_bytes)
    finally:
        exit_code = begun.end()
    return _decoded(answer, timeout_s, exit_code)


def trace_in_interpreter(job: Job, *, timeout_s: float) -> Trace:
    """Run the job in a fresh interpreter: see `parcel` for what can be sent there."""
    from memagent.estimator.trace.job_pickle import packed

    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-c", "from memagent.estimator.trace.isolation import main; main()"]
    body = packed(job)
    with subprocess.Popen(  # noqa: S603  # our own interpreter
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as child:
        try:
            answer = child.communicate(body, timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            answer = None
        code = child.wait()
    return _decoded(answer, timeout_s, code)


def main() -> None:
    """The fresh interpreter's life: a job on stdin, the answer on stdout."""
    from memagent.estimator.trace.job_pickle import unpacked

    output = os.dup(1)
    os.dup2(2, 1)  # what user code prints must not get into the answer
    job = unpacked(sys.stdin.buffer.read())
    with os.fdopen(output, "wb") as file:
        file.write(_encoded(job))
    os._exit(0)


def _be_child(work: Callable[[], Iterable[bytes]], reader: int, writer: int) -> None:
    """The forked child's life; never returns."""
    try:
        os.close(reader)
        _quieten()
        with os.fdopen(writer, "wb") as file:
            for answer in work():
                file.write(_LENGTH.pack(len(answer)) + answer)
                file.flush()
    finally:
        os._exit(0)


def _quieten() -> None:
    """No output, default signals, lowest priority, and an end when the parent ends."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  # notebooks and test runners put their own there
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV, signal.SIGALRM):
        with contextlib.suppress(ValueError, OSError):  # only the main thread may set handlers
            signal.signal(number, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _encoded(job: Job, run: Callable[[Job], Trace] = trace_here) -> bytes:
    """The answer as bytes: ("trace", fields, rows) or ("error", message, op)."""
    try:
        trace = run(job)
        head = {
            item.name: getattr(trace, item.name) for item in fields(Trace) if item.name != "events"
        }
        rows = [tuple(getattr(event, name) for name in _EVENT_FIELDS) for event in trace.events]
        return marshal.dumps(("trace", head, rows))
    except TraceError as error:
        return marshal.dumps(("error", str(error), error.op))
    except BaseException as error:  # noqa: BLE001  # whatever user code raises, SystemExit included, is the answer
        return marshal.dumps(("error", f"{type(error).__name__}: {error}"[:1000], ""))


def _reaped(pid: int) -> int:
    """The child's wait status; 0 where the program's own reaper was faster."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def _read(reader: int, size: int, until: float, check: Callable[[], None]) -> bytes | None:
    """So many bytes of what the child writes; b"" when it ends before, None when time is up. `check` is called while nothing comes."""
    found = bytearray()
    while len(found) < size:
        left = until - time.monotonic()
        if left <= 0:
            return None
        if not select.select([reader], [], [], min(left, _POLL_S))[0]:
            check()
            continue
        part = os.read(reader, min(size - len(found), 1 << 20))
        if not part:
            return b""
        found += part
    return bytes(found)


def _decoded(answer: bytes | None, timeout_s: float, exit_code: int) -> Trace:
    if answer is None:
        raise TraceError(f"the trace was not done after {timeout_s:g} s and was given up")
    if not answer:
        raise ChildDiedError(f"torch ended the tracing process ({_reason(exit_code)})")
    kind, head, rows = marshal.loads(answer)  # noqa: S302  # our own child wrote it  # nosec B302
    if kind == "error":
        raise TraceError(head, op=rows)
    trace: Any = Trace(events=tuple(MemoryEvent(*row) for row in rows), **head)
    return replace(trace)  # type: ignore[no-any-return]


def _reason(exit_code: int) -> str:
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
