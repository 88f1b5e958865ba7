"""A nearly fair lock for the writers of one SQLite file, across threads and processes.

SQLite's own lock lets waiting writers poll with pauses of up to 100 ms, so late writers starve.
Here a thread lock orders the threads of a process, and two lock files make the queue of processes
nearly fair: acquire the entry lock, then the write lock, then release the entry lock. At most one
process can overtake a waiting one.

The lock is about order only. SQLite's lock keeps the database intact, so a writer that waits too
long goes on without this one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from memagent_server.files.file_lock import FileLock

ENTRY_SUFFIX = "-door"
WRITE_SUFFIX = "-room"
"""Suffixes of the lock files beside the database."""


class WriteLock:
    """The lock of the database file at `path`."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = threading.Lock()
        self._entry = FileLock(path + ENTRY_SUFFIX)
        self._write = FileLock(path + WRITE_SUFFIX)

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """Hold the lock, or after `timeout_s` go on without it."""
        deadline = time.monotonic() + self._timeout_s
        if not self._threads.acquire(timeout=self._timeout_s):
            yield
            return
        try:
            is_locked = False
            if self._entry.acquire(deadline):
                is_locked = self._write.acquire(deadline)
                self._entry.release()
            try:
                yield
            finally:
                if is_locked:
                    self._write.release()
        finally:
            self._threads.release()

    def close(self) -> None:
        with self._threads:
            self._entry.close()
            self._write.close()
