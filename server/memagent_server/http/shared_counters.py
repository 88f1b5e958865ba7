"""Small tables of numbers that the web processes of a server share, so that their limits hold
together.

1. A table is a file in the folder of `self_metrics`, mapped into every process. Without that folder
   there is one process, and the table is in its memory.
2. Each key has a row. A row is read and changed under a file lock against other processes, and a
   lock against other threads.
3. A key's digest gives its set of WAYS places. If all of them are in use, the least recently used
   row is replaced.
4. Times in a table are of the system's monotonic clock, which all processes of a machine share.
   After a reboot, times that are left in the folder can lie in the future: readers must check for
   that.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memagent_server import files
from memagent_server.observability import self_metrics

_log = logging.getLogger(__name__)

SETS = 512
WAYS = 16
_DIGEST, _USED_AT, _HEADER = 0, 1, 2
"""A row is a digest, the time of its last use, and then its numbers; each takes 8 bytes."""
_ITEM_BYTES = 8


class SharedCounters:
    """A table with `width` floats for each key, initially 0.

    `secret` keys the digests, so the file reveals no keys.
    """

    def __init__(self, name: str, width: int, secret: str, folder: str | None = None) -> None:
        self._row_items = _HEADER + width
        self._lock = threading.Lock()
        self._secret = hashlib.sha256(secret.encode()).digest()
        size = SETS * WAYS * self._row_items * _ITEM_BYTES
        path = Path(folder) / f"{name}-{self._row_items}.tally" if folder else None
        self._file = _open_file(path, size) if path else None
        self._map = mmap.mmap(-1 if self._file is None else self._file, size)
        self._floats = memoryview(self._map).cast("d")
        self._integers = memoryview(self._map).cast("Q")

    @contextmanager
    def row(self, key: str) -> Iterator[memoryview[float]]:
        """Lock the key's numbers, to read and change them."""
        digest = self._digest(key)
        with self._locked():
            start = self._find_row(digest)
            if start is None:
                start = self._new_row(digest)
            self._floats[start + _USED_AT] = time.monotonic()
            yield self._floats[start + _HEADER : start + self._row_items]

    def find(self, key: str) -> list[float]:
        """Return a copy of the key's numbers. A key without a row gets none, so that keys that a
        stranger makes up replace nothing.
        """
        digest = self._digest(key)
        with self._locked():
            start = self._find_row(digest)
            if start is None:
                return [0.0] * (self._row_items - _HEADER)
            self._floats[start + _USED_AT] = time.monotonic()
            return list(self._floats[start + _HEADER : start + self._row_items])

    def _digest(self, key: str) -> int:
        hashed = hashlib.blake2b(key.encode(), digest_size=8, key=self._secret).digest()
        return int.from_bytes(hashed, "little") | 1  # 0 marks a free row

    def _starts(self, digest: int) -> range:
        """Return where the rows of the digest's set start."""
        # without the lowest bit, which is always 1
        first = digest // 2 % SETS * WAYS * self._row_items
        return range(first, first + WAYS * self._row_items, self._row_items)

    def _find_row(self, digest: int) -> int | None:
        """Return where the digest's row starts."""
        starts = self._starts(digest)
        return next((start for start in starts if self._integers[start + _DIGEST] == digest), None)

    def _new_row(self, digest: int) -> int:
        """Return where the digest's new row starts, which is all zeros."""
        # free rows have the time 0, so they go first
        oldest = min(self._starts(digest), key=lambda start: self._floats[start + _USED_AT])
        self._integers[oldest + _DIGEST] = digest
        for index in range(oldest + _USED_AT, oldest + self._row_items):
            self._floats[index] = 0.0
        return oldest

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # flock is per open file: it doesn't exclude the threads that share the descriptor
        with self._lock:
            if self._file is None:
                yield
                return
            files.lock(self._file)
            try:
                yield
            finally:
                files.unlock(self._file)


def open_counters(name: str, width: int, secret: str) -> SharedCounters:
    """Open this server's table of that name; one in memory if there's no room for its file."""
    try:
        return SharedCounters(name, width, secret, os.environ.get(self_metrics.FOLDER) or None)
    except OSError as error:
        _log.warning("cannot share the table %r (%s): this process counts alone", name, error)
        return SharedCounters(name, width, secret)


def _open_file(path: Path, size: int) -> int:
    """Open the file, filled with zeros by the first process. Raises OSError if the disk is full."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if hasattr(os, "posix_fallocate"):
        # Touching a page of a sparse file on a full disk would kill the process with SIGBUS.
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
    return descriptor
