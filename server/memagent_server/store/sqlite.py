"""SQLite with many writers: a nearly fair lock for them, and checkpoints of the log in a thread.

SQLite's own lock lets waiting writers poll with pauses of up to 100 ms, so late writers starve.
Here a thread lock orders the threads of a process, and two lock files make the queue of processes
nearly fair: acquire the entry lock, then the write lock, then release the entry lock. At most one
process can overtake a waiting one. The lock is about order only. SQLite's lock keeps the database
intact, so a writer that waits too long goes on without this one.

Checkpoints copy the write-ahead log into the database:

1. By default, the writer whose commit makes the log longer than 4 MB copies all of it into the
   database and waits for the disk: every fiftieth batch of 500 samples took 10 to 75 ms.
2. Here a thread starts when the log has CHECKPOINT_BYTES. It copies with PASSIVE checkpoints,
   during which others go on writing.
3. When only a few frames are left, it takes the write lock and truncates the log.
4. If a reader still needs the log, truncation fails; it's retried after the same growth again.
5. Without this thread (it died, or another program writes), SQLite checkpoints by itself at
   AUTOCHECKPOINT_PAGES.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from memagent_server.files import FileLock

ENTRY_SUFFIX = "-door"
WRITE_SUFFIX = "-room"
"""Suffixes of the lock files beside the database."""


class ConnectionStack:
    """Open connections, of which up to `size` stay checked out of the pool while they are idle.

    Checking a connection out of SQLAlchemy's pool and in again takes a tenth of a batch.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[Connection] = []

    @contextmanager
    def lend(self, engine: Engine) -> Iterator[Connection]:
        """Lend an idle connection, or a new one of `engine`. After an error it is closed."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = engine.connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < self._size and not connection.in_transaction():
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):  # the last one is closed, or lent meanwhile
            while True:
                self._idle.pop().close()


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
        # go on: SQLite's own lock decides, and fails with "is locked" if it must
        if not self._threads.acquire(timeout=self._timeout_s):
            yield
            return
        try:
            is_locked = False
            if self._entry.acquire(deadline):
                is_locked = self._write.acquire(deadline)
                # only now may the next process queue for the write lock
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


CHECKPOINT_BYTES = 32 * 2**20
AUTOCHECKPOINT_PAGES = 4 * CHECKPOINT_BYTES // 4096
_FEW_FRAMES = 256
_MAX_PASSES = 5

_log = logging.getLogger(__name__)


class WalCheckpointer:
    """Checkpointer of one database file. Writers call `after_write` after each transaction."""

    def __init__(self, engine: Engine, path: str, write_lock: WriteLock) -> None:
        self._engine = engine
        self._log_path = path + "-wal"
        self._write_lock = write_lock
        self._start_bytes = CHECKPOINT_BYTES
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after_write(self) -> None:
        """Start a checkpoint in the background if the log is long enough."""
        size = _file_size(self._log_path)
        is_running = self._thread is not None and self._thread.is_alive()
        if size < self._start_bytes or self._is_closed or is_running:
            return
        # raised in case that a reader keeps the log from being truncated
        self._start_bytes = size + CHECKPOINT_BYTES
        self._thread = threading.Thread(target=self._run, name="memagent-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the checkpoint that is running."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for _ in range(_MAX_PASSES):
                frames_left = self._checkpoint("PASSIVE")
                if frames_left is None:
                    return  # another process is checkpointing
                # few enough to copy under the write lock
                if frames_left <= _FEW_FRAMES:
                    break
            with self._write_lock.acquire():
                is_truncated = self._checkpoint("TRUNCATE") is not None
            if is_truncated:
                self._start_bytes = CHECKPOINT_BYTES
        except SQLAlchemyError as error:
            _log.warning("the write-ahead log could not be checkpointed: %s", error)

    def _checkpoint(self, mode: str) -> int | None:
        """Run a checkpoint; return the frames that are left, None if others are in the way."""
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # no waiting: TRUNCATE would block all writers for as long
            timeout_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            try:
                result = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({mode})")
                is_busy, frames, copied = result.one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {timeout_ms}")
        return None if is_busy else int(frames) - int(copied)


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - after each transaction: pathlib is slower
    except OSError:
        return 0
