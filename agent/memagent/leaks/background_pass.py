"""Pass over all objects that another thread makes while the script runs its next step."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from threading import Lock

_MAX_PASS_S = 10.0
"""Then the other thread has died without memory, or the machine is too busy to wait for it."""


class BackgroundPass:
    """A call in another thread, begun at one step boundary and waited for at a later one.

    read: may hold the script's objects only within a call in C, in which no other thread runs, and
    leaves behind numbers and weak references.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self.thread_s = 0.0
        """Processor time of the other thread."""
        self.has_failed = False
        self._is_running = Lock()

    def start(self) -> None:
        self._is_running.acquire()
        try:
            # Thread.start would wait for ever for a thread that has no memory to begin
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the system has no more threads
            self.has_failed = True
            self._is_running.release()

    def wait(self) -> bool:
        """Wait until the other thread is done. Return True if it has read everything."""
        if not self.has_failed:
            if self._is_running.acquire(timeout=_MAX_PASS_S):
                self._is_running.release()
            else:
                self.has_failed = True
        return not self.has_failed

    def _run(self) -> None:
        try:
            self._read()
        except Exception:  # noqa: BLE001 - no memory, or a class of the script: the caller goes on
            self.has_failed = True
        self.thread_s = time.thread_time()
        self._is_running.release()
