"""Clients that leave connections half-open or read exports, in a process of their own.

The server makes a few exports at a time and refuses the others: a refused reader comes back after
REFUSED_S. `Readings` counts what was really read, so that no figure stands beside idle readers.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from urllib.parse import urlsplit

from benchmarks.server.load import TOKEN

_KNOWN = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
_EXPORT = b"GET /api/v1/runs/long/export HTTP/1.1\r\n" + _KNOWN + b"\r\n"
_HEAD = b"POST /api/v1/runs/long/batches HTTP/1.1\r\nContent-Type: application/json\r\n" + _KNOWN
_PAGES = 3 * (b"GET /openapi.json HTTP/1.1\r\n" + _KNOWN + b"\r\n")
_HALF_OPEN = (
    b"",
    _HEAD,
    _HEAD + b"Content-Length: 1000\r\n\r\n{",
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\na",
)
_TURN_S, _SLOW_BYTES, _FAST_BYTES = 0.05, 1_024, 2**20
_BUFFER_BYTES = 4_096
REFUSED_S = 1.0

KINDS = ("none", "busy", "half-open", "unread", "slow", "reading", "all")
"""A `busy` one is no client but a loop: what readers cost beyond it is the server's doing. Of `all`,
the first READERS read fast, and the others are of the other kinds in turn; the unread and slow ones
request pages, as they would be refused most exports.
"""
READERS = 10
_FAST = "reading"
_OTHERS = ("half-open", "half-open", "half-open", "half-open", "unread", "slow")


@dataclass
class Readings:
    """What the clients of a phase got. `reading` is the mean number of exports under way."""

    seconds: float = 0.0
    reading: float = 0.0
    received_bytes: int = 0
    exports: int = 0
    refused: int = 0

    def __add__(self, other: Readings) -> Readings:
        seconds = self.seconds + other.seconds
        busy_s = self.reading * self.seconds + other.reading * other.seconds
        return Readings(
            seconds,
            busy_s / seconds if seconds else 0.0,
            self.received_bytes + other.received_bytes,
            self.exports + other.exports,
            self.refused + other.refused,
        )

    def __str__(self) -> str:
        rate = self.received_bytes / max(self.seconds, 1e-9) / 1e6
        return (
            f"{self.reading:.1f} exports at a time, {rate:.1f} MB/s, "
            f"{self.exports} complete, {self.refused} refused"
        )


@contextmanager
def strangers(url: str, kind: str, count: int) -> Iterator[Readings]:
    """Keep `count` connections of a kind open; one that the server closes is opened again.

    The yielded readings are filled in at the end.
    """
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_keep, args=(url, kind, count, ready, stop, theirs), daemon=True
    )
    process.start()
    readings = Readings()
    try:
        if not ready.wait(60.0):
            raise RuntimeError(f"no connections of kind {kind} within 60 s")
        yield readings
        stop.set()
        vars(readings).update(vars(ours.recv()))
    finally:
        stop.set()
        process.join()


def _keep(url: str, kind: str, count: int, ready: Event, stop: Event, end: Connection) -> None:
    if kind == "busy":
        ready.set()
        while not stop.is_set():
            sum(range(10_000))
        end.send(Readings())
        return
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    clients = [_client(address, kind, number) for number in range(count)]
    fast = [client for client in clients if client.kind == _FAST]
    ready.set()
    began_at = last_at = turn_at = time.monotonic()
    readings, busy_s = Readings(), 0.0
    while not stop.is_set():
        # fast readers wait for data only; the others are looked at in turns
        waiting = [client.connection for client in fast if client.is_open]
        select.select(waiting, [], [], max(0.0, turn_at - last_at))
        now = time.monotonic()
        readers = clients if kind != "all" else fast
        busy_s += (now - last_at) * sum(client.is_reading for client in readers)
        last_at = now
        is_turn = now >= turn_at
        turn_at = now + _TURN_S if is_turn else turn_at
        for client in clients if is_turn else fast:
            client.go_on(now, readings)
    readings.seconds = last_at - began_at
    readings.reading = busy_s / max(readings.seconds, 1e-9)
    end.send(readings)
    for client in clients:
        client.connection.close()


def _client(address: tuple[str, int], kind: str, number: int) -> _Client:
    wanted = _EXPORT
    if kind == "all":
        kind = _FAST if number < READERS else _OTHERS[number % len(_OTHERS)]
        wanted = _EXPORT if kind == _FAST else _PAGES
    if kind == "half-open":
        wanted = _HALF_OPEN[number % len(_HALF_OPEN)]
    return _Client(address, kind, wanted)


class _Client:
    """One connection. `is_reading` is True while the server sends it what it `wanted`."""

    def __init__(self, address: tuple[str, int], kind: str, wanted: bytes) -> None:
        self._address = address
        self.kind = kind
        self._wanted = wanted
        self._open()

    def _open(self) -> None:
        self.connection = socket.socket()
        if self.kind in ("unread", "slow"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.connection.connect(self._address)
        self.connection.sendall(self._wanted)
        self.connection.setblocking(False)
        self.is_open = True
        self.is_reading = False
        self._tail = b""
        self._opens_at = 0.0

    def go_on(self, now: float, readings: Readings) -> None:
        """Read what this kind reads; open the connection again once it has ended."""
        if not self.is_open:
            if now >= self._opens_at:
                self._open()
            return
        watched = select.poll()
        watched.register(self.connection, select.POLLRDHUP)
        if watched.poll(0):
            self._close(now)
        elif self.kind in ("slow", "reading"):
            self._read(now, readings)

    def _read(self, now: float, readings: Readings) -> None:
        try:
            received = self.connection.recv(_SLOW_BYTES if self.kind == "slow" else _FAST_BYTES)
        except BlockingIOError:
            return
        if not self._tail and received and not received.startswith(b"HTTP/1.1 200"):
            readings.refused += 1
            self._close(now, REFUSED_S)
            return
        self.is_reading = bool(received)
        readings.received_bytes += len(received)
        self._tail = (self._tail + received)[-5:]
        if not received or self._tail == b"0\r\n\r\n":
            readings.exports += bool(received)
            self._close(now)

    def _close(self, now: float, pause_s: float = 0.0) -> None:
        self.connection.close()
        self.is_open = self.is_reading = False
        self._opens_at = now + pause_s
