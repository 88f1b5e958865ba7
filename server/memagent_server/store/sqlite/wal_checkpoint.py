"""Checkpoints of SQLite's write-ahead log in a thread, instead of in a writer.

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

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from memagent_server.store.sqlite.write_lock import WriteLock

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
