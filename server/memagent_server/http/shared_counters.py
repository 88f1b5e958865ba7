"""Small tables of numbers that the web processes of a server share: what one of them has counted binds the others.

1. A table is a file in the folder of `telemetry`, mapped into every process; where there is no folder there is one process, and the table
   is in its memory only.
2. A row belongs to a key. It is read and changed under a lock, of the file against other processes and of the process against its threads.
3. Where a key lives is one of WAYS places that its digest tells. Are all of them taken, the one that was used longest ago is forgotten.
4. Times in a table are of the system's steady clock, which all processes of a machine read alike. What a boot before has left in the
   folder may lie in the future: who reads a time minds that.
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

from memagent_server.observability import self_metrics

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

SETS, WAYS = 512, 16
_DIGEST, _USED_AT, _HEAD = 0, 1, 2
_ITEM_BYTES = 8


class SharedCounters:
    """`numbers` floats for each key, all 0 at first. `secret` keeps those who see the file from telling what is in it."""

    def __init__(self, name: str, numbers: int, secret: str, folder: str | None = None) -> None:
        self._width, self._lock = _HEAD + numbers, threading.Lock()
        self._secret = hashlib.sha256(secret.encode()).digest()
        size = SETS * WAYS * self._width * _ITEM_BYTES
        self._file = _opened(Path(folder) / f"{name}-{self._width}.tally", size) if folder else None
        self._map = mmap.mmap(-1 if self._file is None else self._file, size)
        self._floats, self._integers = (
            memoryview(self._map).cast("d"),
            memoryview(self._map).cast("Q"),
        )

    @contextmanager
    def row(self, key: str) -> Iterator[memoryview[float]]:
        """The key's numbers, to be read and changed."""
        digest = (
            int.from_bytes(
                hashlib.blake2b(key.encode(), digest_size=8, key=self._secret).digest(), "little"
            )
            | 1
        )
        with self._locked():
            at = self._place(digest)
            self._floats[at + _USED_AT] = time.monotonic()
            yield self._floats[at + _HEAD : at + self._width]

    def _place(self, digest: int) -> int:
        """Where the digest's row begins; its numbers are 0 where it is new."""
        first = digest // 2 % SETS * WAYS * self._width
        places = range(first, first + WAYS * self._width, self._width)
        for at in places:
            if self._integers[at + _DIGEST] == digest:
                return at
        oldest = min(places, key=lambda at: self._floats[at + _USED_AT])
        self._integers[oldest + _DIGEST] = digest
        for place in range(oldest + _USED_AT, oldest + self._width):
            self._floats[place] = 0.0
        return oldest

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            if self._file is None or fcntl is None:
                yield
                return
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def shared(name: str, numbers: int, secret: str) -> SharedCounters:
    """The table of that name of this server."""
    try:
        return SharedCounters(name, numbers, secret, os.environ.get(self_metrics.FOLDER) or None)
    except OSError as error:
        _log.warning("no file for the table %r: this process counts for itself (%s)", name, error)
        return SharedCounters(name, numbers, secret)


def _opened(path: Path, size: int) -> int:
    """The file, made and filled with zeros by whoever comes first. Raises OSError where there is no room for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if hasattr(
        os, "posix_fallocate"
    ):  # now, and not when a page is touched that cannot be had: that is a SIGBUS
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
    return descriptor
