"""Child processes that can't harm their parent: limited in time and memory, killable, silent.

1. On Linux the child is a fork. It has the model, the optimizer and the loss, including `__main__`
   and closures, and copies nothing (pages are shared until written). It never calls CUDA: its
   device guard is a stub (`fake_cuda`), it never frees originals, and it leaves by `os._exit`, so
   that none of the parent's destructors run.
2. A fork has only the thread that forked. Locks that other threads held stay locked: if the child
   waits for one, the time limit ends it. The autograd engine refuses to run in the fork of a
   process that has run backward on a GPU: trace before the first backward (as `attach` does).
3. On other systems, and if the engine refuses, the child is a new interpreter. The model must be
   named by "path.py:factory", or be picklable by reference without its data.
4. If a signal kills the child (torch aborts on some operators), the parent gets an error and may
   try other device rules.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import NoReturn

from memagent.errors import TraceError
from memagent.probe.host_limits import close_own, file_id, read_text

_POLL_S = 0.05
_HEADER = struct.Struct("<Q")
"""The length of the message that follows in the pipe."""
_PR_SET_PDEATHSIG = 1


def can_fork() -> bool:
    """Return whether this system can trace in a fork.

    macOS has fork, but its libraries don't survive it.
    """
    return hasattr(os, "fork") and sys.platform == "linux"


class MemoryGrowth:
    """Measures how much a process has grown, and enforces a limit."""

    def __init__(self, limit_bytes: int | None, process: int | str = "self") -> None:
        self._limit_bytes = limit_bytes
        self._process = process
        self._initial_bytes = self._resident_bytes()

    def bytes(self) -> int:
        """Return the growth of resident memory since the start."""
        return max(0, self._resident_bytes() - self._initial_bytes)

    def check(self) -> None:
        """Raise TraceError above the limit."""
        if self._limit_bytes is not None and self.bytes() > self._limit_bytes:
            limit = self._limit_bytes >> 20
            raise TraceError(f"the trace was aborted: it took more than {limit} MiB of host memory")

    def _resident_bytes(self) -> int:
        pages = read_text(f"/proc/{self._process}/statm").split()
        return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


class ForkedProcess:
    """A forked child that runs `work` and sends each of its results, which are bytes.

    Raises OSError if the system refuses the fork. Another thread than the one that forked may
    receive the results, one after the other. Call `end` once; `cancel` is allowed from any thread.
    """

    def __init__(self, work: Callable[[], Iterable[bytes]]) -> None:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python warns that a fork of a process with threads "may lead to deadlocks": see 2.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _run_child(work, reader, writer)
        # otherwise the reader would never see the end of the pipe
        os.close(writer)
        self._reader = reader
        self._file_id = file_id(reader)

    def receive(self, *, timeout_s: float, limit_growth_bytes: int | None = None) -> bytes | None:
        """Return the next result; b"" if the child ended without one, None at the timeout.

        Raises TraceError if the child grows by more than the limit.
        """
        growth = MemoryGrowth(limit_growth_bytes, self._pid)
        deadline = time.monotonic() + timeout_s
        header = self._read(_HEADER.size, deadline, growth)
        return self._read(_HEADER.unpack(header)[0], deadline, growth) if header else header

    def end(self) -> int:
        """Kill the child if it still runs; return its exit code (negative: the signal)."""
        close_own(self._reader, self._file_id)
        self.cancel()
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:  # the program's own reaper was faster
            return 0

    def cancel(self) -> None:
        """Kill the child, and with it the children it forked."""
        # it may have ended, or been reaped by the program
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _read(self, size: int, deadline: float, growth: MemoryGrowth) -> bytes | None:
        """Read `size` bytes and check the growth while waiting; see `receive` for b"" and None."""
        data = bytearray()
        while len(data) < size:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            try:
                is_ready = select.select([self._reader], [], [], min(remaining_s, _POLL_S))[0]
            except OSError:
                is_ready = [self._reader]
            if not is_ready:
                growth.check()
                continue
            if file_id(self._reader) != self._file_id:  # the script has closed all files
                return b""
            part = os.read(self._reader, min(size - len(data), 1 << 20))
            # end of the pipe: the child has gone
            if not part:
                return b""
            data += part
        return bytes(data)


def _run_child(work: Callable[[], Iterable[bytes]], reader: int, writer: int) -> NoReturn:
    try:
        os.close(reader)
        _silence_process()
        with os.fdopen(writer, "wb") as file:
            for result in work():
                file.write(_HEADER.pack(len(result)) + result)
                file.flush()
    finally:
        # also after an error: the parent sees a child that ended without a result
        os._exit(0)


def _silence_process() -> None:
    """Drop output, reset signals, lower the priority, and end with the parent."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # Notebooks and test runners replace the streams with objects that have no descriptor.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV, signal.SIGALRM):
        with contextlib.suppress(ValueError, OSError):  # only the main thread may set handlers
            signal.signal(number, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        # a killed parent cannot end the child
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
