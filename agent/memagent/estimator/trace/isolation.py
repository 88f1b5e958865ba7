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
5. The fork is detached (`memagent.probe.detached`): the script can't wait for it. So it supervises
   the child that does the work, and sends its exit code. The kernel kills it when the script's end
   of a pipe is closed, whether by `cancel` or by the script's death, and its child with it.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

from memagent.errors import TraceError
from memagent.probe.detached import fork_detached, fork_without_hooks
from memagent.probe.host_limits import close_own, file_id, read_text

_POLL_S = 0.05
_MAX_WALL_RATIO = 10
"""Wall time over processor time at which a process that waits is given up."""
_START = struct.Struct("<QQ")
"""The first message: process ids of the supervisor and of the process that works."""
_HEADER = struct.Struct("<q")
"""The length of the message that follows, or -1 less the exit status that `waitpid` returned."""
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


class ProcessorTime:
    """Measures the processor time of a process since now: a busy host doesn't shorten a budget."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._initial_s = self._total_s()

    def seconds(self) -> float:
        """Return user and system time, 0 if the process has ended."""
        return max(0.0, self._total_s() - self._initial_s)

    def _total_s(self) -> float:
        # the name may contain spaces and brackets: fields count from the last bracket
        fields = read_text(f"/proc/{self._process}/stat").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


class ForkedProcess:
    """A detached process that runs `work` and sends each of its results, which are bytes.

    Raises OSError if the system refuses the fork. Another thread than the one that forked may
    receive the results, one after the other. Call `end` once; `cancel` is allowed from any thread.
    """

    def __init__(self, work: Callable[[], Iterable[bytes]]) -> None:
        reader, writer = os.pipe()
        lifeline, own_end = os.pipe()
        try:
            if fork_detached():
                os.close(reader)
                os.close(own_end)
                _supervise(work, writer, lifeline)
        except OSError:
            os.close(reader)
            os.close(own_end)
            raise
        finally:
            # otherwise the reader would never see the end of the pipe
            os.close(writer)
            os.close(lifeline)
        self._reader = reader
        self._file_id = file_id(reader)
        self._lifeline = [(own_end, file_id(own_end))]
        self._processes: tuple[int, int] | None = None
        """The supervisor, and the process that works."""
        self._wait_status: int = signal.SIGKILL

    def receive(self, *, timeout_s: float, limit_growth_bytes: int | None = None) -> bytes | None:
        """Return the next result; b"" if the child ended without one, None at the timeout.

        The timeout is processor time of the child, or ten times that of waiting. Raises TraceError
        if the child grows by more than the limit.
        """
        deadline = time.monotonic() + _MAX_WALL_RATIO * timeout_s
        if self._processes is None:
            start = self._read(_START.size, deadline)
            if not start:
                return start
            self._processes = _START.unpack(start)
        growth = MemoryGrowth(limit_growth_bytes, self._processes[1])
        used = ProcessorTime(self._processes[1])

        def is_over() -> bool:
            growth.check()
            return used.seconds() > timeout_s

        header = self._read(_HEADER.size, deadline, is_over)
        if not header:
            return header
        (size,) = _HEADER.unpack(header)
        if size < 0:
            self._wait_status = -1 - size
            return b""
        return self._read(size, deadline, is_over)

    def end(self) -> int:
        """Kill the child if it still runs.

        Return the exit code of one that ended without a result (negative: the signal).
        """
        self.cancel()
        close_own(self._reader, self._file_id)
        if self._processes is not None:
            with suppress(ChildProcessError):  # as process 1, the script adopts all orphans
                os.waitpid(self._processes[0], 0)
        return os.waitstatus_to_exitcode(self._wait_status)

    def cancel(self) -> None:
        """Kill the child, and with it the children it forked."""
        with suppress(IndexError):  # cancelled before
            close_own(*self._lifeline.pop())

    def _read(
        self, size: int, deadline: float, is_over: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """Read `size` bytes, and call `is_over` while waiting; see `receive` for b"" and None."""
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
                if is_over():
                    return None
                continue
            if file_id(self._reader) != self._file_id:  # the script has closed all files
                return b""
            part = os.read(self._reader, min(size - len(data), 1 << 20))
            # end of the pipe: the child has gone
            if not part:
                return b""
            data += part
        return bytes(data)


def _supervise(work: Callable[[], Iterable[bytes]], writer: int, lifeline: int) -> NoReturn:
    """Run `work` in a child, and send how that ended: see 5."""
    try:
        _end_with_pipe(lifeline)
        _silence_process()
        supervisor = os.getpid()
        worker = fork_without_hooks()
        if worker == 0:
            _run_child(work, writer, supervisor)
        os.write(writer, _HEADER.pack(-1 - os.waitpid(worker, 0)[1]))
    finally:
        os._exit(0)


def _end_with_pipe(lifeline: int) -> None:
    """Have the kernel kill this process when the other end of a pipe is closed."""
    import fcntl

    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was closed before
        os._exit(0)


def _run_child(work: Callable[[], Iterable[bytes]], writer: int, supervisor: int) -> NoReturn:
    try:
        _end_with_parent(supervisor)
        with os.fdopen(writer, "wb") as file:
            file.write(_START.pack(supervisor, os.getpid()))
            file.flush()
            for result in work():
                file.write(_HEADER.pack(len(result)) + result)
                file.flush()
    finally:
        # also after an error: the parent sees a child that ended without a result
        os._exit(0)


def _silence_process() -> None:
    """Drop output, reset signals, and lower the priority."""
    # Notebooks and test runners replace the streams with objects that have no descriptor.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    for name in ("SIGINT", "SIGTERM", "SIGABRT", "SIGSEGV", "SIGALRM", "SIGCHLD"):
        with suppress(ValueError, OSError):  # only the main thread may set handlers
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    warnings.simplefilter("ignore")
    with suppress(OSError):
        os.nice(10)


def _end_with_parent(parent: int) -> None:
    with suppress(OSError, AttributeError):
        import ctypes

        # a killed parent cannot end the child
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
