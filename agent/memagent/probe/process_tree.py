"""Memory of this process's descendants, above all data-loader workers, with each page counted once.

1. Descendants come from /proc/PID/task/*/children, at a fraction of the cost of a search through
   all processes of the machine (psutil).
2. Their anonymous memory is read about once a second from files that stay open, in 2 us each.
3. The anonymous memory of a forked worker is mostly its parent's pages. The proportional share
   (PSS) divides shared pages among the processes, but the kernel walks all pages to compute it:
   15 ms per GiB. So it's read for a new process and then every 30 s, and not for very large ones;
   every 300 s for a process without descendants whose memory stays the same.
   It may take 1 % of the time, and 20 ms at a time of processor time: on a busy machine a walk
   waits longer than it works. In between, a process counts with its share plus its growth since.
   Before the first reading it counts with what it has beyond the pages that it was forked with: the
   kernel copies the references to anonymous pages only, and none if the process runs a program.
4. This process counts with all of its resident memory. The descendants' shares include a part of
   the same pages, which is subtracted. Mapped files (programs and libraries) are small and ignored.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from memagent.probe.host_limits import close_own, file_id, read_text

PSS_INTERVAL_S = 30.0
LONE_PSS_INTERVAL_S = 300.0
"""The same for a process without descendants whose memory hasn't changed by LONE_CHANGE_RATIO."""
LONE_CHANGE_RATIO = 1 / 8
_MAX_DUTY_RATIO = 0.01
"""Share of the time that reading PSS may take. New processes are read nevertheless."""
_MAX_WALK_S = 0.02
"""Processor time. The rest then waits for the next refresh."""
_MAX_WALK_BYTES = 4 * 2**30
"""Resident memory of the largest process whose PSS is read."""
_ALL_THREADS_INTERVAL = 5
"""Refreshes between two reads of the children of all threads. The main thread's children, where
workers start, are read each time."""
_STATM_BYTES = 128
_FORKED = 0x40
"""PF_FORKNOEXEC of Linux: the process was forked, and has run no other program since."""
_KIB = 1024


class SharedMemory(msgspec.Struct, frozen=True):
    """Memory of one process by how it's shared, from its smaps_rollup. Bytes."""

    resident_bytes: int
    proportional_bytes: int
    private_bytes: int
    anonymous_bytes: int
    shared_anonymous_bytes: int
    """Anonymous pages that the proportional share assigns to other processes, after a fork."""


class ProcfsTree:
    """Descendants from /proc.

    Pages that this process also has don't count in `descendant_bytes`. The proportional share of
    all processes, including this one, is `pss_bytes`, or None if unavailable. A `refresh` takes
    milliseconds: not for the training thread.
    """

    def __init__(
        self,
        pid: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        thread_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.descendant_bytes = 0
        self.pss_bytes: int | None = None
        self._clock = clock
        self._thread_clock = thread_clock
        self._root = _Process(pid or os.getpid())
        self._descendants: dict[int, _Process] = {}
        self._refreshes = 0
        self._idle_until = float("-inf")

    def refresh(self) -> None:
        self._root.refresh()
        self._find_descendants()
        for pid, process in list(self._descendants.items()):
            if not process.refresh():
                process.close()
                del self._descendants[pid]
        self._read_shared_memory()
        self.descendant_bytes = self._sum_descendants()

    def close(self) -> None:
        self._root.close()
        while self._descendants:
            self._descendants.popitem()[1].close()

    def _find_descendants(self) -> None:
        all_threads = self._refreshes % _ALL_THREADS_INTERVAL == 0
        self._refreshes += 1
        for pid in descendants(self._root.pid, all_threads=all_threads):
            if pid not in self._descendants:
                try:
                    self._descendants[pid] = _Process(pid, self._root.anonymous_bytes)
                except OSError:  # already gone, or too many open files
                    continue

    def _read_shared_memory(self) -> None:
        """Read the processes whose turn it is: this one, then new ones, then the oldest reading."""
        started, walk_started = self._clock(), self._thread_clock()
        is_idle = started < self._idle_until
        queue = sorted(self._descendants.values(), key=lambda process: process.read_at)
        due = [
            process
            # an older kernel stops this process's own mmap calls during the walk
            for process in ([self._root] if _HAS_PREEMPTIBLE_WALK else []) + queue
            if process.resident_bytes <= _MAX_WALK_BYTES
            and process.read_at <= started - self._interval_s(process)
            and (not is_idle or (process.read_at < 0 and process is not self._root))
        ]
        for process in due:
            process.shared = read_shared_memory(process.pid)
            # also without a result: an unreadable process is not asked in each refresh
            process.read_at = started
            walk_s = self._thread_clock() - walk_started
            # a walk of 10 ms is followed by a second without one
            self._idle_until = started + walk_s / _MAX_DUTY_RATIO
            if walk_s >= _MAX_WALK_S:
                break
        root = self._root.shared
        if self._root in due and root is not None:
            self.pss_bytes = (
                root.proportional_bytes + root.shared_anonymous_bytes + self._sum_descendants()
            )

    def _interval_s(self, process: _Process) -> float:
        """Return the seconds between two readings: a process alone shares hardly any pages."""
        shared = process.shared
        if self._descendants or shared is None:
            return PSS_INTERVAL_S
        change = abs(process.anonymous_bytes - shared.anonymous_bytes)
        is_settled = change < LONE_CHANGE_RATIO * shared.anonymous_bytes
        return LONE_PSS_INTERVAL_S if is_settled else PSS_INTERVAL_S

    def _sum_descendants(self) -> int:
        """Sum the shares, without the pages of this process that they include: see 4."""
        total = sum(process.estimate_bytes() for process in self._descendants.values())
        read = [p.shared for p in self._descendants.values() if p.shared is not None]
        # the workers share the same pages with this process: the largest part counts once
        counted_twice = max((shared.shared_anonymous_bytes for shared in read), default=0)
        private = sum(shared.private_bytes for shared in read)
        # private pages belong to one process only, so the sum is never below them
        return max(total - counted_twice, min(total, private))


class _Process:
    """A process with an open file, so that a later process of the same number isn't mistaken.

    `inherited_bytes`: anonymous memory that it has if it was forked.
    """

    def __init__(self, pid: int, inherited_bytes: int = 0) -> None:
        self.pid = pid
        self.resident_bytes = 0
        self.anonymous_bytes = 0
        self.inherited_bytes = inherited_bytes
        self.shared: SharedMemory | None = None
        self.read_at = float("-inf")
        self._open()

    def refresh(self) -> bool:
        """Read its memory. Return whether the process exists; a zombie has no memory."""
        try:
            if file_id(self._fd) != self._file_id:  # the script has closed all files
                self._open()
            pages = os.pread(self._fd, _STATM_BYTES, 0).split()
            self.resident_bytes = int(pages[1]) * _PAGE_BYTES
            self.anonymous_bytes = self.resident_bytes - int(pages[2]) * _PAGE_BYTES
        except (OSError, IndexError):
            return False
        if self.shared is None and self.inherited_bytes and not _is_forked(self.pid):
            self.inherited_bytes = 0
        return True

    def estimate_bytes(self) -> int:
        """Return the share plus growth, or before a reading, growth since the fork."""
        if self.shared is None:
            return max(0, self.anonymous_bytes - self.inherited_bytes)
        growth = self.anonymous_bytes - self.shared.anonymous_bytes
        return min(max(self.shared.proportional_bytes + growth, 0), self.resident_bytes)

    def close(self) -> None:
        close_own(self._fd, self._file_id)

    def _open(self) -> None:
        self._fd = os.open(f"/proc/{self.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._file_id = file_id(self._fd)


class PsutilTree:
    """Descendants from psutil, on systems without /proc. Shared pages count for each process."""

    pss_bytes: int | None = None

    def __init__(self) -> None:
        self.descendant_bytes = 0
        import psutil  # slow to import, and not needed on Linux

        self._process = psutil.Process()
        self._error = psutil.Error

    def refresh(self) -> None:
        total = 0
        for child in self._process.children(recursive=True):
            try:
                total += int(child.memory_info().rss)
            except self._error:  # already gone, or refused
                continue
        self.descendant_bytes = total

    def close(self) -> None:
        return None


def open_process_tree() -> ProcfsTree | PsutilTree:
    """Open the source of readings for this system."""
    return ProcfsTree() if sys.platform.startswith("linux") else PsutilTree()


def descendants(pid: int, *, all_threads: bool = True) -> Iterator[int]:
    """Yield the process ids of all descendants; without `all_threads`, of the main thread's.

    Asks psutil if the kernel was built without /proc/PID/task/TID/children.
    """
    if not _HAS_CHILDREN_FILES:
        yield from _descendants_by_psutil(pid)
        return
    queue = [*_children(pid, all_threads)]
    while queue:
        child = queue.pop()
        yield child
        # a descendant may start processes from any of its threads
        queue += _children(child, True)


def read_shared_memory(pid: int) -> SharedMemory | None:
    """Read /proc/PID/smaps_rollup.

    Returns None for a process that is gone or not readable, and on kernels before 4.14.
    """
    sizes = {
        words[0]: int(words[1]) * _KIB
        for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines()[1:]
        if (words := line.split()) and len(words) == 3
    }
    if "Rss:" not in sizes:  # a kernel thread, or a process that has ended
        return None
    anonymous = sizes.get("Anonymous:", 0)
    return SharedMemory(
        resident_bytes=sizes["Rss:"],
        proportional_bytes=sizes.get("Pss:", sizes["Rss:"]),
        private_bytes=sizes.get("Private_Clean:", 0) + sizes.get("Private_Dirty:", 0),
        anonymous_bytes=anonymous,
        shared_anonymous_bytes=max(0, anonymous - sizes.get("Pss_Anon:", anonymous)),
    )


def _is_forked(pid: int) -> bool:
    """Return False if the process has run a program since it was forked."""
    try:
        words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        flags = int(words[6])
    except (OSError, IndexError, ValueError):
        return True
    return flags == 0 or bool(flags & _FORKED)  # 0: unknown, since all processes have some


def _children(pid: int, all_threads: bool) -> Iterator[int]:
    tasks = f"/proc/{pid}/task"
    try:
        # A Path for each costs more than reading the names.
        threads = os.listdir(tasks) if all_threads else [str(pid)]  # noqa: PTH208
    except OSError:
        return
    for thread in threads:
        if children := read_text(f"{tasks}/{thread}/children"):
            yield from map(int, children.split())


def _descendants_by_psutil(pid: int) -> Iterator[int]:
    import psutil

    try:
        for child in psutil.Process(pid).children(recursive=True):
            yield child.pid
    except psutil.Error:
        return


def _has_preemptible_walk() -> bool:
    """Return whether a walk over a process's pages lets the process map memory (Linux 5.10)."""
    try:
        major, minor = os.uname().release.split(".")[:2]
        return (int(major), int(minor)) >= (5, 10)
    except (AttributeError, ValueError):
        return False


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_HAS_CHILDREN_FILES = Path(f"/proc/self/task/{os.getpid()}/children").exists()
_HAS_PREEMPTIBLE_WALK = _has_preemptible_walk()
