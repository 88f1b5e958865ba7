"""Fake services: an HTTP receiver, and a Slack that validates and refuses like the real one."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs

import pytest

from memagent.wire.messages import RunStart
from memagent_server.notify.channel import AlertMessage
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.runs import start_run

GIB = 2**30
FACTS = {
    "step": 1000, "level": "warning", "cause": "leak", "eta_step": 1420.0, "eta_low": 1300.0, "eta_high": 1600.0, "eta_s": 1500.0,
    "used_bytes": 30 * GIB, "limit_bytes": 40 * GIB, "growth_bytes_per_step": 2.0**24, "growing_since_step": 40, "oom_probability": 0.9,
}  # fmt: skip
MESSAGE = AlertMessage(
    alert_id=1, transition_id=2, topic="alert-1", dedup_key="k3v9:2:test", rule="oom_forecast", severity="warning", from_state="pending",
    to_state="firing", reason="", at=2000.0, step=1000, first_step=1000, opened_at=2000.0, facts=FACTS, run_id="k3v9",
    run_name="gpt-small", project="nlp", run_url="http://box/runs/k3v9", alert_url="http://box/alerts#alert-1",
    runbook_url="http://box/runbooks#oom_forecast", host="box", rank=1,
    world_size=4, device_name="NVIDIA A100", predicted_peak_bytes=20 * GIB, observed_peak_bytes=30 * GIB,
)  # fmt: skip


@pytest.fixture
def make_message() -> Callable[..., AlertMessage]:
    """make_message(**changes): the warning of a leaking run."""

    def make_message(**changes: Any) -> AlertMessage:
        facts = {**FACTS, **changes.pop("facts", {})}
        return replace(MESSAGE, facts=facts, **changes)

    return make_message


class Receiver:
    """Answers with the next of `answers` (status, body, headers), then with `usual`; keeps (path, headers, body)."""

    def __init__(self, usual: bytes = b"ok") -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                status, response, headers = (
                    receiver.answers.pop(0) if receiver.answers else (200, usual, {})
                )
                own = {
                    "Content-Type": "application/json",
                    **headers,
                    "Content-Length": str(len(response)),
                }
                _answer(self, status, response, own)

            do_PATCH = do_POST  # noqa: N815

            def log_message(self, *_):
                pass

        self._served = _Served(Handler)
        self.url = self._served.url

    def payload(self, number: int = -1) -> Any:
        return json.loads(self.requests[number][2])

    def close(self) -> None:
        self._served.close()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


class Slack:
    """Slack's Web API as far as memagent uses it. It keeps what a workspace would, and refuses what Slack's documentation says it refuses.

    `messages` {ts: message}, each with `thread_ts`, `files`; `calls` the methods called; `refusals` {method: [(status, error, headers)]}
    are used up one by one. `scopes` are those of the token.
    """

    token = "xoxb-1-secret"
    app_token: str | None = None
    socket_url = ""
    channel = "C1"

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refusals: dict[str, list[tuple[int, str, dict[str, str]]]] = {}
        self.scopes = {"chat:write", "files:write", "channels:history"}
        self.posted_at: list[float] = []
        self.ephemeral: list[dict[str, Any]] = []
        self._uploads: dict[str, dict[str, Any]] = {}
        self._number = 1700000000
        slack = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, response, headers = slack._serve(self.path, dict(self.headers), body)
                content = response if isinstance(response, bytes) else json.dumps(response).encode()
                own = {
                    "Content-Type": "application/json",
                    **headers,
                    "Content-Length": str(len(content)),
                }
                _answer(self, status, content, own)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_):
                pass

        self._served = _Served(Handler)
        self.url = self._served.url + "/api/"

    def close(self) -> None:
        self._served.close()

    @property
    def roots(self) -> list[dict[str, Any]]:
        return [message for message in self.messages.values() if "thread_ts" not in message]

    def replies(self, ts: str) -> list[dict[str, Any]]:
        return [message for message in self.messages.values() if message.get("thread_ts") == ts]

    def refuse(self, method: str, error: str, status: int = 200, **headers: str) -> None:
        self.refusals.setdefault(method, []).append(
            (status, error, {name.replace("_", "-"): value for name, value in headers.items()})
        )

    def _serve(
        self, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        path, _, query = path.partition("?")
        if path.startswith("/upload/"):
            self._uploads[path.removeprefix("/upload/")]["content"] = body
            return 200, b"OK", {}
        method = path.removeprefix("/api/")
        self.calls.append(method)
        wanted = self.app_token if method == "apps.connections.open" else self.token
        if headers.get("Authorization") != f"Bearer {wanted}":
            return 200, {"ok": False, "error": "invalid_auth"}, {}
        if self.refusals.get(method):
            status, error, extra = self.refusals[method].pop(0)
            return status, {"ok": False, "error": error}, extra
        text = body.decode()
        form = {name: values[0] for name, values in parse_qs(f"{text}&{query}").items()}
        fields = json.loads(text) if text.startswith("{") else form
        try:
            return 200, {"ok": True, **getattr(self, "_" + method.replace(".", "_"))(fields)}, {}
        except RefusedError as error:
            return 200, {"ok": False, "error": str(error)}, {}

    def _chat_postMessage(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - as Slack calls it
        self._check(fields, "chat:write")
        thread = fields.get("thread_ts")
        if thread is not None and thread not in self.messages:
            raise RefusedError("thread_not_found")
        self._number += 1
        ts = f"{self._number}.000100"
        self.messages[ts] = {"ts": ts, "files": [], "edits": 0, **fields}
        return {"ts": ts, "channel": self.channel}

    def _chat_update(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._check(fields, "chat:write")
        if fields["ts"] not in self.messages:
            raise RefusedError("message_not_found")
        message = self.messages[fields["ts"]]
        message.update(fields, edits=message["edits"] + 1)
        return {"ts": fields["ts"], "channel": self.channel}

    def _chat_postEphemeral(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - as Slack calls it
        self._check(fields, "chat:write")
        self.ephemeral.append(fields)
        return {"message_ts": "1.1"}

    def _apps_connections_open(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"url": self.socket_url}

    def _conversations_history(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._need("channels:history")
        return {"messages": self.roots[::-1]}

    def _conversations_replies(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._need("channels:history")
        return {"messages": [self.messages[fields["ts"]], *self.replies(fields["ts"])]}

    def _files_getUploadURLExternal(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - as Slack calls it
        self._need("files:write")
        name = f"F{len(self._uploads)}"
        self._uploads[name] = {"name": fields["filename"], "length": int(fields["length"])}
        return {"upload_url": f"{self._served.url}/upload/{name}", "file_id": name}

    def _files_completeUploadExternal(self, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - as Slack calls it
        self._need("files:write")
        files = (
            fields["files"] if isinstance(fields["files"], list) else json.loads(fields["files"])
        )
        for file in files:
            upload = self._uploads[file["id"]]
            if len(upload["content"]) != upload["length"]:
                raise RefusedError("file_update_failed")
            self.messages[fields["thread_ts"]]["files"].append(
                {**upload, "title": file.get("title")}
            )
        return {"files": files}

    def _need(self, scope: str) -> None:
        if scope not in self.scopes:
            raise RefusedError("missing_scope")

    def _check(self, fields: dict[str, Any], scope: str) -> None:
        self._need(scope)
        if fields.get("channel") != self.channel:
            raise RefusedError("channel_not_found")
        for name in ("blocks", "metadata"):
            if isinstance(fields.get(name), str):
                fields[name] = json.loads(fields[name])
        for name in ("reply_broadcast", "unfurl_links"):
            if name in fields:
                fields[name] = fields[name] in (True, "1", "true", "True")
        if not fields.get("text") and not fields.get("blocks"):
            raise RefusedError("no_text")
        if len(fields.get("text", "")) > 40_000:
            raise RefusedError("msg_too_long")
        if not set(fields.get("metadata", {"event_type": 0, "event_payload": 0})) == {
            "event_type",
            "event_payload",
        }:
            raise RefusedError("metadata_must_be_sent_from_app")
        faults = block_faults(fields.get("blocks") or [])
        if faults:
            raise RefusedError(f"invalid_blocks {faults}")


class RefusedError(Exception):
    pass


def block_faults(blocks: list[dict[str, Any]]) -> list[str]:
    """Return the faults of blocks, see https://docs.slack.dev/reference/block-kit/blocks."""
    faults = ["more than 50 blocks"] if len(blocks) > 50 else []
    for number, block in enumerate(blocks):
        check = {
            "header": _header,
            "section": _section,
            "context": _context,
            "actions": _actions,
        }.get(block.get("type"))
        result = check(block) if check else [f"unknown type {block.get('type')}"]
        faults += [f"blocks[{number}]: {fault}" for fault in result]
    return faults


def _text(value: Any, kinds: tuple[str, ...], limit: int) -> list[str]:
    if not isinstance(value, dict) or value.get("type") not in kinds:
        return [f"text must be one of {kinds}"]
    words = value.get("text")
    if not isinstance(words, str) or not 1 <= len(words) <= limit:
        return [f"text must have 1 to {limit} characters"]
    if value["type"] == "mrkdwn" and re.search(r"<!(channel|here|everyone)", words):
        return ["it notifies the whole channel"]
    if value["type"] == "mrkdwn" and "emoji" in value:
        return ["emoji belongs to plain_text"]
    return []


def _header(block: dict[str, Any]) -> list[str]:
    return _text(block.get("text"), ("plain_text",), 150)


def _section(block: dict[str, Any]) -> list[str]:
    return _text(block.get("text"), ("plain_text", "mrkdwn"), 3000)


def _context(block: dict[str, Any]) -> list[str]:
    elements = block.get("elements", [])
    faults = [] if 1 <= len(elements) <= 10 else ["1 to 10 elements"]
    return faults + [
        fault for element in elements for fault in _text(element, ("plain_text", "mrkdwn"), 3000)
    ]


def _actions(block: dict[str, Any]) -> list[str]:
    elements = block.get("elements", [])
    faults = [] if 1 <= len(elements) <= 25 else ["1 to 25 elements"]
    ids = [element.get("action_id") for element in elements]
    faults += ["action_id must be unique"] if len(set(ids)) < len(ids) else []
    for element in elements:
        faults += _text(element.get("text"), ("plain_text",), 75)
        if element.get("type") != "button" or len(element.get("url", "")) > 3000:
            faults.append("no button, or its address is too long")
        if not 1 <= len(element.get("value", "1")) <= 2000:
            faults.append("a value has 1 to 2000 characters")
        if "confirm" in element:
            faults += _dialog(element["confirm"])
        if not re.match("https?://", element.get("url", "http://")):
            faults.append("its address is none")
        if element.get("style", "primary") not in ("primary", "danger"):
            faults.append("unknown style")
    return faults


def _dialog(confirm: dict[str, Any]) -> list[str]:
    limits = {"title": 100, "text": 300, "confirm": 30, "deny": 30}
    if set(confirm) != set(limits):
        return ["a dialog has title, text, confirm and deny"]
    return [
        fault
        for name, limit in limits.items()
        for fault in _text(confirm[name], ("plain_text",), limit)
    ]


@pytest.fixture
def slack():
    slack = Slack()
    yield slack
    slack.close()


@pytest.fixture
def bot(slack):
    """Return a Slack bot that doesn't wait between messages."""
    return SlackBot(slack.token, slack.channel, base_url=slack.url, sleep=lambda _: None)


class Clock:
    """A clock that a test advances by setting `now`."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue_alert(database):
    """queue_alert(run_id, name, states): start the run if it is new, open an alert, queue a message
    per state for the channel `test`, and return the alert's id.
    """

    def queue_alert(
        run_id: str = "r", name: str = "gpt", states: Sequence[str] = ("firing", "oom")
    ) -> int:
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, name=name), 1.0)
            alert = open_alert(session, run_id=run_id, stream_id=None, rule="oom_forecast", severity="warning", state="firing",
                               step=5, summary="", data={"step": 5}, now=1.0)  # fmt: skip
            for before, after in pairwise(("pending", *states)):
                add_transition(session, alert, from_state=before, to_state=after, reason="", now=1.0,
                               channels=["test"])  # fmt: skip
            return alert.id

    return queue_alert


@pytest.fixture
def faults_of():
    return block_faults


class _Served:
    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _answer(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
