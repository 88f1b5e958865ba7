"""SQLite's write-ahead log is moved into the database beside the writers, not by one of them.

1. Left to itself, the writer whose commit makes the log longer than 4 MB copies all of it into the database and waits until the disk
   has it: every fiftieth batch of 500 samples took 10 to 75 ms for that.
2. Here a thread begins when the log has LOG_BYTES. It copies while others go on writing, which SQLite allows.
3. What they wrote meanwhile is little. That is copied while nobody writes, and the log begins anew, empty.
4. Where somebody still reads what only the log has, it cannot: then it is tried again when as much was written once more.
5. Where there is no such thread (it died, or this is another program), SQLite does it itself, later: at BACKSTOP_PAGES.
"""

from __future__ import annotations

import logging
import os
import threading

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from memagent_server.store.sqlite.write_lock import WriteLock

LOG_BYTES = 32 * 2**20
BACKSTOP_PAGES = 4 * LOG_BYTES // 4096
_LITTLE_FRAMES = 256
_MOST_PASSES = 5

_log = logging.getLogger(__name__)


class WalCheckpointer:
    """Of the database file at `path`, which writers to it call after each transaction."""

    def __init__(self, engine: Engine, path: str, turns: WriteLock) -> None:
        self._engine, self._log_path, self._turns = engine, path + "-wal", turns
        self._begin_at = LOG_BYTES
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after_write(self) -> None:
        """Begin in the background if it is time."""
        size = _size(self._log_path)
        if (
            size < self._begin_at
            or self._is_closed
            or (self._thread is not None and self._thread.is_alive())
        ):
            return
        self._begin_at = size + LOG_BYTES
        self._thread = threading.Thread(target=self._run, name="memagent-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for _ in range(_MOST_PASSES):
                left = self._copy("PASSIVE")
                if left is None:
                    return  # another process is at it
                if left <= _LITTLE_FRAMES:
                    break
            with self._turns.mine():
                is_empty = self._copy("TRUNCATE") is not None
            self._begin_at = LOG_BYTES if is_empty else self._begin_at
        except SQLAlchemyError as error:
            _log.warning("the write-ahead log cannot be moved into the database: %s", error)

    def _copy(self, how: str) -> int | None:
        """Copy what is in the log now; how many frames came meanwhile, None where others are in the way."""
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            patience_ms = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            try:
                is_busy, frames, copied = connection.exec_driver_sql(
                    f"PRAGMA wal_checkpoint({how})"
                ).one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience_ms}")
        return None if is_busy else int(frames) - int(copied)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - with each transaction
    except OSError:
        return 0
