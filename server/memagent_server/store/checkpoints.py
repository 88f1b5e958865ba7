"""SQLite's write-ahead log is moved into the database beside the writers, not by one of them.

1. Left to itself, the writer whose commit makes the log longer than 4 MB copies all of it into the database and waits until the disk
   has it: every fiftieth batch of 500 samples took 10 to 75 ms for that.
2. Here a thread begins when the log has LOG_BYTES. It copies while others go on writing, which SQLite allows.
3. What they wrote meanwhile is little. That is copied while nobody writes, so that the log begins anew and does not grow for ever.
4. Where there is no such thread (it died, or this is another program), SQLite does it itself, later: at BACKSTOP_PAGES.
"""

from __future__ import annotations

import logging
import os
import threading

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from memagent_server.store.turns import Turns

LOG_BYTES = 32 * 2**20
BACKSTOP_PAGES = 4 * LOG_BYTES // 4096
_LITTLE_FRAMES = 256
_MOST_PASSES = 5

_log = logging.getLogger(__name__)


class Checkpoints:
    """Of the database file at `path`, which writers to it call after each transaction."""

    def __init__(self, engine: Engine, path: str, turns: Turns) -> None:
        self._engine, self._log_path, self._turns = engine, path + "-wal", turns
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def after_write(self) -> None:
        """Begin in the background if it is time."""
        if (self._thread is not None and self._thread.is_alive()) or self._is_closed:
            return
        if _size(self._log_path) >= LOG_BYTES:
            self._thread = threading.Thread(target=self._run, name="memagent-checkpoint", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for _ in range(_MOST_PASSES):
                left = self._copy()
                if left is None:
                    return  # another process is at it
                if left <= _LITTLE_FRAMES:
                    break
            with self._turns.mine():
                self._copy()
        except SQLAlchemyError as error:
            _log.warning("the write-ahead log cannot be moved into the database: %s", error)

    def _copy(self) -> int | None:
        """Copy what is in the log now; how many frames came meanwhile, None where another connection is copying."""
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            is_busy, frames, copied = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
        return None if is_busy else int(frames) - int(copied)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - with each transaction
    except OSError:
        return 0
