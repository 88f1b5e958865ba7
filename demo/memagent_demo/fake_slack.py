"""Local substitute for Slack: accepts posts to an incoming webhook and responses `ok`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
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

    def is_end_of(self, run_id: str) -> bool:
        """Return True if this reports that the run has run out of memory."""
        return run_id in str(self.payload) and "ran out of memory" in self.text


class SlackReceiver:
    """Context manager; `url` is for MEMAGENT_SLACK_WEBHOOK_URL, `messages` holds all posts."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._arrival = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                is_known = self.path == PATH
                if is_known:
                    with receiver._arrival:
                        receiver.messages.append(Message(time.time(), json.loads(body)))
                        receiver._arrival.notify_all()
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

    def wait_for(self, is_expected: Callable[[Message], bool], timeout_s: float) -> bool:
        """Wait for a message; return False if none arrived in time."""
        with self._arrival:
            return self._arrival.wait_for(lambda: any(map(is_expected, self.messages)), timeout_s)

    def __enter__(self) -> SlackReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
