"""File locks between processes. The system releases a lock when its process ends."""

from __future__ import annotations

import os
import time

try:
    import fcntl
except ImportError:  # not a Unix: there are no such locks
    fcntl = None  # type: ignore[assignment]

IS_SUPPORTED = fcntl is not None
_POLL_S = 0.0003


def lock(fd: int) -> None:
    """Lock an open file, waiting for others. Does nothing on systems without such locks."""
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX)


def try_lock(fd: int) -> bool:
    """Lock an open file; return False if another process holds it, or if files can't be locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another process, or a filesystem without locks
        return False
    return True


def unlock(fd: int) -> None:
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)


class FileLock:
    """A lock with a deadline. If the file can't be created, it can never be acquired."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        if fcntl is not None:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:  # a folder that can't be written
                self._fd = None

    def acquire(self, deadline: float) -> bool:
        """Poll until `deadline` (monotonic): a thread that waits in the kernel can't give up."""
        if self._fd is None:
            return False
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
            except OSError:  # a filesystem without locks
                return False
            time.sleep(_POLL_S)

    def release(self) -> None:
        if self._fd is not None:
            unlock(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
