"""Writers of one SQLite file take turns: threads of a process by a lock, processes by locks on two files beside the database.

SQLite takes one writer at a time and lets the others poll, with pauses of up to 100 ms: who comes late polls while others overtake.
Here nobody overtakes twice: a process waits at the door, then for the room, and leaves the door to the next one when it is inside.
It is about order only. What keeps the database whole is SQLite's own lock, and who waits too long tries that without a turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # not a Unix: SQLite's polling has to do between processes
    fcntl = None  # type: ignore[assignment]

DOOR, ROOM = "-door", "-room"
"""What the names of the two files end with."""
_PAUSE_S = 0.0003


class WriteLock:
    """Of the writers to the database file at `path`."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = threading.Lock()
        self._door, self._room = _opened(path + DOOR), _opened(path + ROOM)

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Wait for our turn, and keep it."""
        until = time.monotonic() + self._timeout_s
        if not self._threads.acquire(timeout=self._timeout_s):
            yield
            return
        try:
            is_inside = self._enter(until)
            try:
                yield
            finally:
                if is_inside and self._room is not None:
                    fcntl.flock(self._room, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        with self._threads:
            for fd in (self._door, self._room):
                if fd is not None:
                    os.close(fd)
            self._door = self._room = None

    def _enter(self, until: float) -> bool:
        if self._door is None or self._room is None or not _locked(self._door, until):
            return False
        try:
            return _locked(self._room, until)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)


def _locked(fd: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(
                fd, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # one that waits in the kernel could not give up
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        except OSError:  # a filesystem without locks
            return False
        time.sleep(_PAUSE_S)


def _opened(path: str) -> int | None:
    if fcntl is None:
        return None
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a folder that cannot be written
        return None
