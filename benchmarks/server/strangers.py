"""Clients that leave connections half-open or read exports, in a process of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from urllib.parse import urlsplit

_EXPORT = b"GET /api/v1/runs/long/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_HEAD = b"POST /api/v1/runs/long/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_HALF_OPEN = (
    b"",
    _HEAD,
    _HEAD + b"Content-Length: 1000\r\n\r\n{",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\na",
)
_TURN_S, _SLOW_BYTES, _FAST_BYTES = 0.05, 1_024, 2**20
_BUFFER_BYTES = 4_096

KINDS = ("none", "half-open", "unread", "slow", "reading")


@contextmanager
def strangers(url: str, kind: str, count: int) -> Iterator[None]:
    """Keep `count` connections of a kind open; one that the server closes is opened again."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_keep, args=(url, kind, count, ready, stop), daemon=True)
    process.start()
    try:
        if not ready.wait(60.0):
            raise RuntimeError(f"no connections of kind {kind} within 60 s")
        yield
    finally:
        stop.set()
        process.join()


def _keep(url: str, kind: str, count: int, ready: Event, stop: Event) -> None:
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    opened = {number: _open(address, kind, number) for number in range(count)}
    ready.set()
    while not stop.is_set():
        for number, connection in opened.items():
            if not _goes_on(connection, kind):
                connection.close()
                opened[number] = _open(address, kind, number)
        time.sleep(_TURN_S)
    for connection in opened.values():
        connection.close()


def _open(address: tuple[str, int], kind: str, number: int) -> socket.socket:
    connection = socket.socket()
    if kind in ("unread", "slow"):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    connection.connect(address)
    connection.sendall(_HALF_OPEN[number % len(_HALF_OPEN)] if kind == "half-open" else _EXPORT)
    connection.setblocking(False)
    return connection


def _goes_on(connection: socket.socket, kind: str) -> bool:
    """Read what this kind reads. Return False once the server has closed the connection."""
    watched = select.poll()
    watched.register(connection, select.POLLRDHUP)
    if watched.poll(0):
        return False
    if kind in ("slow", "reading"):
        with contextlib.suppress(BlockingIOError):
            received = connection.recv(_SLOW_BYTES if kind == "slow" else _FAST_BYTES)
            if not received or received.endswith(b"0\r\n\r\n"):
                return False
    return True
