"""Ends what a rehearsal leaves behind: its scratch folder, and the processes that work in it.

`main` waits in a process of its own for the end of its input: the rehearsal's, or that of the
rehearsing process, by whatever signal. A process is the rehearsal's if its environment names the
folder, or if it works there. A title that it gives itself may hide the former: the script's process
is known by its number.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "memagent-rehearsal-"
_END_S = 10.0
"""Time that processes have to end after SIGTERM."""
_POLL_S = 0.02
_TERMINAL_FIELD = 4
_START_FIELD = 19
"""Index of the start in /proc/PID/stat, behind the name. Numbers come again, starts don't."""


@dataclass(frozen=True)
class TemporaryFolder:
    """A folder, and the process that removes it in the end."""

    folder: Path
    _reaper: subprocess.Popen[bytes]

    def add_process(self, number: int) -> None:
        """Announce a process that works in the folder."""
        with suppress(BrokenPipeError):
            assert self._reaper.stdin is not None
            self._reaper.stdin.write(b"%d\n" % number)


@contextmanager
def temporary_folder() -> Iterator[TemporaryFolder]:
    """Make a folder, and remove it afterwards with all processes that work in it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    reaper = subprocess.Popen(  # noqa: S603  # this module
        [sys.executable, "-I", "-S", __file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # nobody waits for it at the end of the script's output
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,  # the terminal's signals are for the script
    )
    try:
        yield TemporaryFolder(folder, reaper)
    finally:
        reaper.communicate()


def main(folder: str) -> None:
    """Wait for the end of the input, which is numbers of processes, and clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    starts = {start_of(line.strip()) for line in sys.stdin}
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end_all(folder, starts, number)
    shutil.rmtree(folder, ignore_errors=True)


def _end_all(folder: str, starts: set[str], number: int) -> None:
    """Send a signal to each process once, and wait until there is none."""
    until, reached = time.monotonic() + _END_S, set[int]()
    while (processes := processes_of(folder, starts)) and time.monotonic() < until:
        for process in processes - reached:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        reached |= processes
        time.sleep(_POLL_S)


def processes_of(folder: str, starts: set[str]) -> set[int]:
    """Return processes with one of these starts, or whose environment names the folder."""
    name = os.fsencode(folder)
    numbers = set[int]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (place / "environ").read_bytes()  # empty if the process has ended
            is_known = name in environment or (environment and start_of(place.name) in starts)
            if is_known or _works_below(place, name):
                numbers.add(int(place.name))
    return numbers


def _works_below(process: Path, folder: bytes) -> bool:
    """Return whether a process without a terminal works there: its environment may be empty.

    One with a terminal may be a shell that a person looks at the copy with.
    """
    place = os.fsencode(process.joinpath("cwd").readlink())
    fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
    return fields[_TERMINAL_FIELD] == "0" and place.startswith(os.path.realpath(folder))


def start_of(process: str) -> str:
    """Return the number and the start of a process; empty if there is none."""
    try:
        fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{process} {fields[_START_FIELD]}"


if __name__ == "__main__":
    main(sys.argv[1])
