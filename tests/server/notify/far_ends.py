"""Real servers for the channels, HTTP and SMTP, that answer or fail as they are asked to.

`fault` is one of FAULTS or LIES, and holds until it is changed. `messages` has what a server has
accepted. A lie accepts a message, but not in the form that the protocol asks for.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = "answers"
FAULTS = ("hangs", "resets", "is busy")
LIES = ("odd values", "cut short", "wrong encoding")
RETRY_AFTER_S = 3
_ANSWER = {"ok": True, "ts": "1.1", "channel": "C1", "id": 7, "messages": []}
_ODD_ANSWER = {**_ANSWER, "ts": ["1.1"], "channel": "\ud800", "id": {"id": 10**400}}
_QUESTIONS = ("conversations.history", "conversations.replies")


class HttpService:
    """A service that takes any POST for a message, except Slack's questions about earlier ones."""

    def __init__(self) -> None:
        self.fault = ANSWERS
        self.messages: list[bytes] = []
        self._is_closing = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service._respond(self, body)

            do_PATCH = do_POST  # noqa: N815

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _respond(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.fault == "hangs":
            self._is_closing.wait()
            handler.close_connection = True
            return
        if self.fault == "resets":
            _reset(handler.connection)
            handler.close_connection = True
            return
        if self.fault == "is busy":
            _send(handler, 429, b'{"ok": false}', {"Retry-After": str(RETRY_AFTER_S)})
            return
        if not handler.path.endswith(_QUESTIONS):
            self.messages.append(body)
        content = json.dumps(_ODD_ANSWER if self.fault == "odd values" else _ANSWER).encode()
        headers = {"Content-Encoding": "gzip"} if self.fault == "wrong encoding" else {}
        size = len(content) + (100 if self.fault == "cut short" else 0)
        _send(handler, 200, content, {**headers, "Content-Length": str(size)})


class MailService:
    """A mail server. Its lies concern the goodbye, and the text of the response."""

    def __init__(self) -> None:
        from aiosmtpd.controller import Controller

        self.fault = ANSWERS
        self.messages: list[bytes] = []
        self._is_closing = asyncio.Event()
        self._controller = Controller(self, hostname="127.0.0.1", port=_free_port())
        self._controller.start()
        self.url = f"smtp://127.0.0.1:{self._controller.port}"

    def close(self) -> None:
        self._controller.loop.call_soon_threadsafe(self._is_closing.set)
        self._controller.stop()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if self.fault == "hangs":
            await self._is_closing.wait()
        if self.fault == "resets":
            server.transport.abort()
        if self.fault in FAULTS:
            return "451 busy"
        self.messages.append(envelope.content)
        return "250 " + "x" * 2_000 if self.fault == "wrong encoding" else "250 OK"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if self.fault == "cut short":
            server.transport.abort()
        return "500 what?" if self.fault == "odd values" else "221 Bye"


def _send(
    handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]
) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(content)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)


def _reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RD)
    connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
