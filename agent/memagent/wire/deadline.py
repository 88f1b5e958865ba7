"""A deadline for all that happens on a connection: TLS, sending, head and body of the answer.

1. The timeout of a socket begins again with each byte: a peer that sends one byte a second never
   exceeds it. A deadline bounds the sum.
2. A thread waits for the deadline, then shuts the connection down, whichever call is waiting.
3. It does so by a duplicate of the descriptor: TLS replaces the socket, and a closed descriptor may
   already belong to another file.
4. The thread is started without `threading`, whose `start` waits for ever if a script has left no
   memory for the thread's first call. If none can be started, only the timeouts hold. It waits by
   functions in C: a call of Python's would take memory, and nobody could catch its error.

Resolving the name of a host is up to the system, and not covered.
"""

from __future__ import annotations

import _thread
import contextlib
import socket
import threading
import time
from contextvars import ContextVar
from functools import partial
from types import TracebackType

_CURRENT: ContextVar[Deadline | None] = ContextVar("memagent_deadline", default=None)


class Deadline:
    """Context manager. Connections that `watch` gets within it, in this thread, are shut down
    `seconds` after its start.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._is_running = threading.Lock()
        self._lock = threading.Lock()
        self._duplicates: list[socket.socket] = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    def __enter__(self) -> Deadline:
        self._outer = _CURRENT.set(self)
        self._is_running.acquire()
        waits = iter(partial(self._is_running.acquire, True, self._seconds), True)
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(any, (map(self._shut_down, waits),))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _CURRENT.reset(self._outer)
        self._is_running.release()
        with self._lock:
            for duplicate in self._duplicates:
                duplicate.close()
            self._duplicates.clear()

    def watch(self, connection: socket.socket) -> None:
        duplicate = socket.fromfd(connection.fileno(), connection.family, connection.type)
        with self._lock:
            self._duplicates.append(duplicate)
        if self.is_over:
            self._shut_down()

    def _shut_down(self, _is_left: bool = False) -> bool:
        """Shut down what is watched, and return True: the thread has no more to do."""
        with self._lock:
            for duplicate in self._duplicates:
                with contextlib.suppress(OSError):  # the peer has closed it
                    duplicate.shutdown(socket.SHUT_RDWR)
        return True


def watch(connection: socket.socket) -> None:
    """Apply the deadline that this thread is within, if any, to a connection."""
    deadline = _CURRENT.get()
    if deadline is not None:
        deadline.watch(connection)
