"""Local substitute for Slack: accepts posts to an incoming webhook and responses `ok`."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/services/T00000000/B00000000/demo"


@dataclass(frozen=True)
class Message:
    received_at: float
    """Seconds since the Unix epoch."""
    payload: dict[str, Any]

    @property
    def text(self) -> str:
        return str(self.payload.get("text", ""))


class SlackReceiver:
    """Context manager; `url` is for MEMAGENT_SLACK_WEBHOOK_URL, `messages` holds all posts."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                is_known = self.path == PATH
                if is_known:
                    receiver.messages.append(Message(time.time(), json.loads(body)))
                response = b"ok" if is_known else b"no_service"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(response)))
                self.end_headers()
                self.wfile.write(response)

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="slack-receiver", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def __enter__(self) -> SlackReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
