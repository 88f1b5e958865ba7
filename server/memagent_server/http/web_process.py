"""Web processes beside their requests: a heartbeat, and deadlines of the socket they listen on.

1. The parent replaces a process that no longer answers. A web process touches its file every BEAT_S
   seconds if a thread has completed a call since. An idle process makes a call that does nothing.
2. The parent looks every CHECK_S seconds, and kills a child whose file it finds unchanged
   MAX_MISSED_CHECKS times. It counts checks instead of seconds: a machine that was suspended kills
   none.
3. Connections inherit the options of the socket. granian opens it itself and offers no timeout for
   sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from pathlib import Path

import psutil

from memagent_server.http.asgi import AsgiApp
from memagent_server.observability import self_metrics

BEAT_S = 1.0
CHECK_S = 3.0
MAX_MISSED_CHECKS = 10
HEAD_TIMEOUT_S = 30
"""granian closes a connection that sends no complete head for so long."""
SEND_TIMEOUT_S = 20
"""A connection that accepts no data for so long is closed by the kernel."""
_POLL_S = 0.05
_log = logging.getLogger(__name__)


async def beat(app: AsgiApp) -> None:
    """Touch this process's file while its threads work."""
    call, completed = None, -1
    while True:
        if call is None or call.done():
            call = asyncio.ensure_future(app.run(lambda: None))
        await asyncio.sleep(BEAT_S)
        if app.completed_calls != completed:
            completed = app.completed_calls
            with contextlib.suppress(OSError, KeyError):
                _path(os.getpid()).touch()


async def limit_sending() -> None:
    """Wait until this process listens, then set the deadline for sending. Linux only."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    while not (descriptors := _listening_descriptors()):
        await asyncio.sleep(_POLL_S)
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as listening:
            option = socket.TCP_USER_TIMEOUT
            listening.setsockopt(socket.IPPROTO_TCP, option, 1000 * SEND_TIMEOUT_S)


def _listening_descriptors() -> list[int]:
    connections = psutil.Process().net_connections("tcp")
    return [one.fd for one in connections if one.status == psutil.CONN_LISTEN]


class HeartbeatMonitor:
    """A thread of the parent that kills children without a heartbeat."""

    def __init__(self) -> None:
        self._missed: dict[int, tuple[int, int]] = {}

    def run(self, stopping: threading.Event) -> None:
        """Check until `stopping` is set."""
        while not stopping.wait(CHECK_S):
            for child in psutil.Process().children():
                if self._has_stopped(child.pid):
                    _log.error(
                        "web process %d has not answered for %.0f s: killing it",
                        child.pid,
                        CHECK_S * MAX_MISSED_CHECKS,
                    )
                    child.kill()

    def _has_stopped(self, pid: int) -> bool:
        try:
            beat_at = _path(pid).stat().st_mtime_ns
        except (OSError, KeyError):  # the worker, a web process that is still starting, no folder
            return False
        last_beat_at, missed = self._missed.get(pid, (0, 0))
        missed = missed + 1 if beat_at == last_beat_at else 0
        self._missed[pid] = beat_at, missed
        return missed >= MAX_MISSED_CHECKS


def _path(pid: int) -> Path:
    """Raise KeyError if the processes have no folder: none was created, or the server ends."""
    return Path(os.environ[self_metrics.FOLDER]) / f"web-{pid}.heartbeat"
