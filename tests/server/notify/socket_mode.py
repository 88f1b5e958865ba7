"""Slack's end of Socket Mode: a WebSocket server that sends envelopes and keeps confirmations.

`press` sends a pressed button; `confirmed` has the ids of confirmed envelopes; `end` closes without
a goodbye. Source: RFC 6455, https://docs.slack.dev/apis/events-api/using-socket-mode/
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import struct
import threading
from typing import Any

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA


class SocketMode:
    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self.connections = 0
        self._current: socket.socket | None = None
        self._sent = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}/link/?ticket=1"
        threading.Thread(target=self._accept, daemon=True).start()

    def press(self, action_id: str, value: str, **changes: Any) -> str:
        """Press a button of a message; return the envelope's id."""
        payload = {
            "type": "block_actions",
            "user": {"id": "U1", "username": "ana", "name": "ana", "team_id": "T1"},
            "channel": {"id": "C1", "name": "alerts"},
            "actions": [
                {"type": "button", "action_id": action_id, "block_id": "b", "value": value}
            ],
            **changes,
        }
        return self.send({"type": "interactive", "payload": payload})

    def send(self, envelope: dict[str, Any]) -> str:
        self._sent += 1
        envelope_id = f"envelope-{self._sent}"
        self.send_text(json.dumps({"envelope_id": envelope_id, **envelope}))
        return envelope_id

    def send_text(self, text: str) -> None:
        assert self._current is not None
        _send_frame(self._current, TEXT, text.encode())

    def end(self) -> None:
        """Close the connection without a goodbye."""
        assert self._current is not None
        # the thread that reads keeps a plain close from sending anything
        self._current.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for open_socket in (self._listener, self._current):
            # a thread waits in each: a plain close would not wake it
            with contextlib.suppress(OSError):
                if open_socket is not None:
                    open_socket.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection, connection.makefile("rb") as file:
            _shake_hands(connection, file)
            _send_frame(connection, TEXT, b'{"type": "hello", "num_connections": 1}')
            self._current = connection
            self.connections += 1
            while True:
                opcode, content = _read_frame(file)
                if opcode == PING:
                    _send_frame(connection, PONG, content)
                elif opcode == TEXT:
                    self.confirmed.append(json.loads(content)["envelope_id"])
                elif opcode == CLOSE:
                    return


def _shake_hands(connection: socket.socket, file: Any) -> None:
    key = ""
    while line := file.readline().strip().decode():
        name, _, value = line.partition(":")
        key = value.strip() if name.lower() == "sec-websocket-key" else key
    accepted = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        + f"Sec-WebSocket-Accept: {accepted}\r\n\r\n".encode()
    )


def _send_frame(connection: socket.socket, opcode: int, content: bytes) -> None:
    size = len(content)
    if size < 126:
        length = struct.pack("!B", size)
    elif size < 2**16:
        length = struct.pack("!BH", 126, size)
    else:
        length = struct.pack("!BQ", 127, size)
    connection.sendall(bytes([0x80 | opcode]) + length + content)


def _read_frame(file: Any) -> tuple[int, bytes]:
    first, second = _read(file, 2)
    size = second & 0x7F
    if size == 126:
        (size,) = struct.unpack("!H", _read(file, 2))
    elif size == 127:
        (size,) = struct.unpack("!Q", _read(file, 8))
    assert second & 0x80, "a client masks its frames"
    mask = _read(file, 4)
    content = _read(file, size)
    return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(content))


def _read(file: Any, size: int) -> bytes:
    content: bytes = file.read(size)
    if len(content) < size:
        raise EOFError
    return content
