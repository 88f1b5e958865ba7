"""A server that follows a script on each connection, for clients that must not trust their peer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

DRIP_S = 0.02
MAX_DRIPS = 300
"""A client without a deadline gets its answer in the end, and its test fails instead of hanging."""


class ScriptedServer:
    """Calls `script(connection)` for each connection, in a thread. `accepted` counts them."""

    def __init__(self, script: Callable[[socket.socket], None]) -> None:
        self.accepted = 0
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self._script(connection)


def read_request(connection: socket.socket) -> bytes:
    """Read a request with its body, and return it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += _receive(connection)
    return head + b"\r\n\r\n" + body


def response(body: bytes, *headers: str) -> bytes:
    """Return a response with status 200."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def drip(connection: socket.socket, content: bytes, end: bytes) -> None:
    """Send `content` over and over, a byte at a time, and at last `end`."""
    for number in range(MAX_DRIPS):
        connection.sendall(content[number % len(content)].to_bytes(1, "big"))
        time.sleep(DRIP_S)
    connection.sendall(end)


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    if not data:
        raise ConnectionError("the client has closed the connection")
    return data
