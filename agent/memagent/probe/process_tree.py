"""What this process's descendants (data-loader workers above all) hold, each page counted once.

1. Descendants are found by /proc/PID/task/*/children, which costs a fraction of a look at every process of the machine.
2. Their resident memory is read about once a second from files that stay open: 2 us each.
3. A forked worker's resident memory is mostly its parent's pages. Their proportional share (PSS) divides shared pages among those who
   share them, but the kernel walks all pages for it: 15 ms a GiB. So shares are read when a process is new and every half minute, for
   a fiftieth of a second at a time, never more than a hundredth of the time, and not of very large processes. In between a process is
   taken to hold its share and what it has grown since; before its first, what it has beyond this process's own resident memory.
4. This process counts with all its resident memory, so what the descendants' shares hold of its own pages is subtracted: they would
   count twice. Programs and libraries on disk are left out of this; they are small and shared with everybody.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SHARES_EVERY_S = 30.0
_DUTY = 0.01
"""Most of the time that reading shares may take."""
_AT_A_TIME_S = 0.02
"""After this long the rest waits for another refresh: the thread that calls has samples to save."""
_WALKABLE_BYTES = 4 * 2**30
"""Resident memory of the largest process whose shares are read."""
_ALL_THREADS_EVERY = 5
"""Refreshes between two looks at the children of all threads; the main thread's, where workers are made, are looked at each time."""
_KIB = 1024


@dataclass(frozen=True)
class Shares:
    """One process's pages by who else holds them, in bytes."""

    resident_bytes: int
    proportional_bytes: int
    private_bytes: int
    lent_bytes: int
    """Memory that is no file's: what of it the proportional share leaves to others who hold the same pages after a fork."""


class ProcessTree(Protocol):
    """`refresh` takes milliseconds: not for the training thread."""

    beside_bytes: int
    """Held by the descendants and not by this process."""
    pss_bytes: int | None
    """Proportional share of all, this process included; None where it is not told."""

    def refresh(self) -> None: ...
    def close(self) -> None: ...


class ProcfsTree:
    """Linux."""

    def __init__(
        self, pid: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.beside_bytes = 0
        self.pss_bytes: int | None = None
        self._clock = clock
        self._own = _Member(pid or os.getpid())
        self._members: dict[int, _Member] = {}
        self._refreshes = 0
        self._idle_until = float("-inf")

    def refresh(self) -> None:
        self._own.refresh()
        self._find()
        for pid, member in list(self._members.items()):
            if not member.refresh():
                member.close()
                del self._members[pid]
        self._read_shares()
        self.beside_bytes = self._beside()

    def close(self) -> None:
        self._own.close()
        while self._members:
            self._members.popitem()[1].close()

    def _find(self) -> None:
        all_threads = self._refreshes % _ALL_THREADS_EVERY == 0
        self._refreshes += 1
        for pid in descendants(self._own.pid, all_threads=all_threads):
            if pid not in self._members:
                try:
                    self._members[pid] = _Member(pid)
                except OSError:  # gone already, or no file left to open
                    continue

    def _read_shares(self) -> None:
        """Of those whose shares are due: this process, then new members, then old ones."""
        began = self._clock()
        if began < self._idle_until:
            return
        waiting = sorted(self._members.values(), key=lambda member: member.read_at)
        own = [self._own] if _WALKS_ARE_POLITE else []
        due = [
            member
            for member in own + waiting
            if member.resident_bytes <= _WALKABLE_BYTES and member.read_at <= began - SHARES_EVERY_S
        ]
        for member in due:
            member.shares, member.read_at = shares_of(member.pid), began
            self._idle_until = began + (self._clock() - began) / _DUTY
            if self._clock() - began >= _AT_A_TIME_S:
                break
        if self._own in due and self._own.shares is not None:
            self.pss_bytes = (
                self._own.shares.proportional_bytes + self._own.shares.lent_bytes + self._beside()
            )

    def _beside(self) -> int:
        held = sum(member.held_bytes(self._own.resident_bytes) for member in self._members.values())
        known = [member.shares for member in self._members.values() if member.shares is not None]
        lent = max((shares.lent_bytes for shares in known), default=0)
        return max(held - lent, min(held, sum(shares.private_bytes for shares in known)))


class _Member:
    """A process; its file stays open, so that another one with the same number is never mistaken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.resident_bytes = 0
        self.shares: Shares | None = None
        self.read_at = float("-inf")
        self._fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)

    def refresh(self) -> bool:
        """Whether it is still there; one that has ended and waits for its parent holds nothing."""
        try:
            self.resident_bytes = int(os.pread(self._fd, 128, 0).split()[1]) * _PAGE
        except (OSError, IndexError):
            return False
        return True

    def held_bytes(self, inherited: int) -> int:
        """Its share and what it has grown since; `inherited` is what a fork would have begun with."""
        if self.shares is None:
            return max(0, self.resident_bytes - inherited)
        grown = self.resident_bytes - self.shares.resident_bytes
        return min(max(self.shares.proportional_bytes + grown, 0), self.resident_bytes)

    def close(self) -> None:
        os.close(self._fd)


class PsutilTree:
    """Where there is no /proc: resident memory of the descendants, pages shared with them counted for each."""

    pss_bytes: int | None = None

    def __init__(self) -> None:
        self.beside_bytes = 0
        import psutil  # slow to import, and not needed on Linux

        self._process = psutil.Process()

    def refresh(self) -> None:
        self.beside_bytes = sum(map(_resident_bytes, self._process.children(recursive=True)))

    def close(self) -> None:
        return None


def open_process_tree() -> ProcessTree:
    return ProcfsTree() if sys.platform.startswith("linux") else PsutilTree()


def descendants(pid: int, *, all_threads: bool = True) -> Iterator[int]:
    """Process numbers of `pid`'s children, their children, and so on; without `all_threads`, those its main thread made.

    Asks psutil where the kernel was built without /proc/PID/task/TID/children.
    """
    if not _HAS_CHILDREN_FILES:
        yield from _ask_psutil(pid)
        return
    waiting = [*_children(pid, all_threads)]
    while waiting:
        child = waiting.pop()
        yield child
        waiting += _children(child, True)


def shares_of(pid: int) -> Shares | None:
    """From /proc/PID/smaps_rollup; None for a process that is gone or not ours to read, and on kernels before 4.14."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    found = {
        words[0]: int(words[1]) * _KIB
        for line in text.splitlines()[1:]
        if (words := line.split()) and len(words) == 3
    }
    if "Rss:" not in found:  # a kernel thread or a process that has ended
        return None
    anonymous = found.get("Anonymous:", 0)
    return Shares(
        resident_bytes=found["Rss:"],
        proportional_bytes=found.get("Pss:", found["Rss:"]),
        private_bytes=found.get("Private_Clean:", 0) + found.get("Private_Dirty:", 0),
        lent_bytes=max(0, anonymous - found.get("Pss_Anon:", anonymous)),
    )


def _children(pid: int, all_threads: bool) -> Iterator[int]:
    tasks = f"/proc/{pid}/task"
    try:
        threads = os.listdir(tasks) if all_threads else [str(pid)]  # noqa: PTH208 - a Path for each costs more than the names
    except OSError:
        return
    for thread in threads:
        try:
            text = Path(f"{tasks}/{thread}/children").read_bytes()
        except OSError:
            continue
        yield from map(int, text.split())


def _ask_psutil(pid: int) -> Iterator[int]:
    import psutil

    try:
        for child in psutil.Process(pid).children(recursive=True):
            yield child.pid
    except psutil.Error:
        return


def _resident_bytes(process: Any) -> int:
    import psutil

    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _walks_are_polite() -> bool:
    """Since Linux 5.10 a walk over a process's pages gives way to the process when it wants to map memory itself."""
    try:
        major, minor = os.uname().release.split(".")[:2]
        return (int(major), int(minor)) >= (5, 10)
    except (AttributeError, ValueError):
        return False


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_HAS_CHILDREN_FILES = Path(f"/proc/self/task/{os.getpid()}/children").exists()
_WALKS_ARE_POLITE = _walks_are_polite()
