"""This process's own memory, as the training thread reads it: one system call on a file that stays open, and nothing parsed.

On Linux a kept /proc/self/statm is read in 1.1 us, 1.0 of which are the kernel's; opening it each time costs 11, psutil 13.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from memagent.probe import Raw
from memagent.probe.host_limits import Usage


class OwnMemory(Protocol):
    """`read` and `high_water` are for the training thread and give raw readings; the rest says what those mean."""

    read: Callable[[], Raw]
    high_water: Callable[[], Raw]

    def usage(self, raw: Raw) -> Usage:
        """Of this process alone, from what `read` gave."""
        ...

    def peak_resident_bytes(self, raw: Raw) -> int:
        """Most that this process alone ever had resident, from what `high_water` gave; 0 where the system does not keep it."""
        ...

    def repair(self) -> None:
        """A script that closes all files closes ours too: after this, `read` works again, as another function."""
        ...

    def close(self) -> None: ...


class ProcfsMemory:
    """Linux. In a forked child the same `read` tells the child's memory: its file is opened anew under the same number."""

    read: Callable[[], Raw]
    _fd: int
    _identity: tuple[int, int] | None

    def __init__(self) -> None:
        import resource  # absent on Windows

        self._page = os.sysconf("SC_PAGE_SIZE")
        self.high_water: Callable[[], Raw] = partial(resource.getrusage, resource.RUSAGE_SELF)
        self._open()
        self._last = self.usage(self.read())
        _opened.add(self)

    def usage(self, raw: Raw) -> Usage:
        """For bytes that are none of /proc/self/statm's, of a file that a script opened in its place, the last usage known."""
        try:
            pages = raw.split()
            page = self._page
            self._last = Usage(int(pages[0]) * page, int(pages[5]) * page, int(pages[1]) * page)
        except (ValueError, IndexError):
            pass
        return self._last

    def peak_resident_bytes(self, raw: Raw) -> int:
        return int(raw.ru_maxrss) * 1024

    def repair(self) -> None:
        if (
            _identity(self._fd) != self._identity
        ):  # the number may be somebody else's by now: leave it to them
            self._open()

    def reopen_in_child(self) -> None:
        if _identity(self._fd) != self._identity:
            self._open()
            return
        fresh = _open_statm()
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)
        self._identity = _identity(self._fd)

    def close(self) -> None:
        _opened.discard(self)
        if _identity(self._fd) == self._identity:
            os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        self._fd = _open_statm()
        self._identity = _identity(self._fd)
        self.read = partial(os.pread, self._fd, 128, 0)


class PsutilMemory:
    """Where there is no /proc: resident memory stands for all."""

    def __init__(self) -> None:
        import psutil  # slow to import, and not needed on Linux

        self.read: Callable[[], Raw] = psutil.Process().memory_info
        self.high_water: Callable[[], Raw] = int

    def usage(self, raw: Raw) -> Usage:
        return Usage(raw.vms, raw.rss, raw.rss)

    def peak_resident_bytes(self, raw: Raw) -> int:
        return 0

    def repair(self) -> None:
        return None

    def close(self) -> None:
        return None


def open_own_memory() -> OwnMemory:
    return ProcfsMemory() if sys.platform.startswith("linux") else PsutilMemory()


_opened: weakref.WeakSet[ProcfsMemory] = weakref.WeakSet()


def _open_statm() -> int:
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def _identity(fd: int) -> tuple[int, int] | None:
    """Of the file behind the number; None for a number without one."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _reopen_all() -> None:
    for memory in list(_opened):
        with suppress(OSError):  # no number left: `repair` tries again
            memory.reopen_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen_all)
