"""Kill the largest process of the tests before it takes the machine's last memory.

The kernel chooses whom it kills, and a machine without swap stands still before that: then no test
is named. A test that was killed here is reported as the one at which its worker crashed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

MIN_AVAILABLE_BYTES = 2**30
_INTERVAL_S = 0.5
_PROC = Path("/proc")


def start() -> None:
    """Watch from a thread of this process, which the tests' processes descend from."""
    if (_PROC / "meminfo").exists():
        threading.Thread(target=_watch, name="memory watch", daemon=True).start()


def _watch() -> None:
    pause = threading.Event()
    while not pause.wait(_INTERVAL_S):
        if available_bytes() < MIN_AVAILABLE_BYTES:
            kill_largest(os.getpid())


def available_bytes() -> int:
    lines = (_PROC / "meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def kill_largest(root: int) -> int | None:
    """Kill the descendant of `root` with the most resident memory, and return its process id."""
    sizes = dict(_descendants(root))
    largest = max(sizes, key=sizes.__getitem__, default=None)
    if largest is not None:
        command = (_PROC / str(largest) / "cmdline").read_text().replace("\0", " ")
        print(
            f"\nmemory watch: killed process {largest}, which had {sizes[largest] / 2**30:.1f} GiB"
            f" of the machine's last memory: {command[:300]}",
            file=sys.__stderr__,
            flush=True,
        )
        os.kill(largest, signal.SIGKILL)
    return largest


def _descendants(root: int) -> list[tuple[int, int]]:
    """Return the process ids and resident bytes of all processes below `root`."""
    page = os.sysconf("SC_PAGE_SIZE")
    parents, sizes = {}, {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)], sizes[int(folder.name)] = int(fields[1]), page * int(fields[21])
    below, found = {root}, True
    while found:
        found = {process for process, parent in parents.items() if parent in below} - below
        below |= found
    return [(process, sizes[process]) for process in below - {root}]
