"""HTTP client of the server's API: requests of the command line, downloads, and delivery of
envelopes.

1. A failed connection is explained with what to do about it, in the terminal and in a training run.
2. The far end may be anything. An answer has at most MAX_ANSWER_BYTES, before and after
   decompression, and the timeout is a deadline for the whole exchange.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec

from memagent import __version__
from memagent.delivery.envelope import Envelope, MessageKind, Reply, Transport
from memagent.errors import DeliveryError, RejectedError, StartRequiredError
from memagent.probe.detached import forks_wait
from memagent.units import format_bytes
from memagent.wire.codec import MSGPACK, REPLAYED_HEADER, encode, prepare
from memagent.wire.deadline import Deadline
from memagent.wire.local_tokens import Scope, find_token
from memagent.wire.messages import BatchReply, RehearsalMessage, StartReply

prepare(BatchReply)

REQUEST_TIMEOUT_S = 5.0
DOWNLOAD_TIMEOUT_S = 60.0
"""Silence after which a server that sends a file hangs."""
MAX_ANSWER_BYTES = 2**20
_CHUNK_BYTES = 2**18
_MAX_PROBLEM_BYTES = 10_000

_TOO_SLOW = "connected, but no answer in time: a proxy, or a server that hangs"
_REASONS = {
    "NameResolutionError": "unknown host name: check the spelling, the DNS and the VPN",
    "SSLError": "TLS failed: check the certificate, and whether it is http:// or https://",
    "ReadTimeoutError": _TOO_SLOW,
    "NewConnectionError": (
        "connection refused: start `memagent serve` there, or check host and port"
    ),
    "ConnectTimeoutError": "no answer in time: a firewall, or the wrong address",
    "ProtocolError": "connection closed: check the port, and whether it is http:// or https://",
}
"""Explanation by the name of urllib3's error. If an error is several of these, the first counts."""
_PATHS: dict[MessageKind, str] = {
    "start": "/api/v1/runs",
    "batch": "/api/v1/runs/{run_id}/batches",
    "prediction": "/api/v1/runs/{run_id}/predictions",
    "snapshot": "/api/v1/runs/{run_id}/snapshots",
    "finish": "/api/v1/runs/{run_id}/finish",
}
_RETRIABLE = (401, 403, 408, 425, 429)
"""The 4xx that people or time can fix: a token that is replaced, a server that is busy."""


@dataclass(frozen=True)
class ApiResponse:
    """A response with header names in lower case.

    `began_at` and `ended_at` are Unix seconds by this machine's clock.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    began_at: float
    ended_at: float

    def fields(self) -> dict[str, Any]:
        """Return the body as a JSON object, empty if it isn't one."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return {}


class ApiClient:
    """A client of one server, with one kept connection. Redirects aren't followed.

    The token is sent with each request and kept out of every message and repr. Without one, that
    of `local_scope` is sent to the own user's server on this machine. It may change at each start.
    """

    def __init__(
        self,
        server: str,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        local_scope: Scope | None = "read",
    ) -> None:
        self.server = server
        self._local_scope = None if token else local_scope
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"memagent/{__version__}",
            **(headers or {}),
        }
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pools: dict[str, Any] = {}

    def request(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> ApiResponse:
        """Send a request and return the response, whatever its status.

        Raises DeliveryError, which says what to do, if there is no response within `timeout_s`, or
        if it is larger than `max_bytes`.
        """
        began_at = time.time()
        with Deadline(timeout_s) as deadline:
            response = self._send(method, path, body=body, timeout_s=timeout_s, deadline=deadline)
            content = self._read(response, max_bytes, deadline)
        headers = {name.lower(): text for name, text in response.headers.items()}
        return ApiResponse(response.status, headers, content, began_at, time.time())

    def download(self, path: str) -> Iterator[bytes]:
        """Yield a file in chunks. Raises DeliveryError if the server refuses or breaks off."""
        import urllib3

        with Deadline(DOWNLOAD_TIMEOUT_S) as deadline:
            # a file of any type and size: only silence is limited, not the total time
            response = self._send(
                "GET", path, accept="*/*", timeout_s=DOWNLOAD_TIMEOUT_S, deadline=deadline
            )
            if response.status != 200:
                detail = problem_detail(self._read(response, MAX_ANSWER_BYTES, deadline))
                raise DeliveryError(f"{self.server} answered {response.status}{detail}")
        try:
            yield from response.stream(_CHUNK_BYTES)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise DeliveryError(f"{self.server}: {explain(error)}") from error
        finally:
            response.close()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        accept: str | None = None,
        timeout_s: float,
        deadline: Deadline,
    ) -> Any:
        """Send a request and return the response, whose body is still to be read."""
        with forks_wait():
            import urllib3  # takes 40 ms and more: the sender's thread pays, not attach()

            from memagent.wire.bounded_http import HttpPool, OwnUserPool, pool_manager

        headers, http_pool = self._headers, HttpPool
        if accept is not None:
            headers = {**headers, "Accept": accept}
        if self._local_scope and (token := find_token(self.server, self._local_scope)):
            headers, http_pool = {**headers, "Authorization": f"Bearer {token}"}, OwnUserPool
        pool = self._pools.get(http_pool.__name__)
        if pool is None:
            hide_log_records()
            # no retries here: the sender has its own delays and deadline
            pool = pool_manager(http_pool=http_pool, num_pools=1, maxsize=1, retries=False)
            self._pools[http_pool.__name__] = pool
        try:
            return pool.request(
                method,
                self.server + path,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout_s, read=timeout_s),
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            reason = _TOO_SLOW if deadline.is_over else explain(error)
            raise DeliveryError(f"{self.server} cannot be reached: {reason}") from error

    def _read(self, response: Any, max_bytes: int, deadline: Deadline) -> bytes:
        import urllib3

        from memagent.wire.bounded_http import TooLargeError, read_body

        reason = None
        try:
            content = read_body(response, max_bytes)
        except TooLargeError:
            reason = f"an answer of more than {format_bytes(max_bytes)} isn't a memagent server's"
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            reason = explain(error)
        if deadline.is_over:  # a body without a length ends like a complete one
            reason = _TOO_SLOW
        if reason is not None:
            response.close()
            raise DeliveryError(f"{self.server}: {reason}")
        return content


def post_rehearsal(message: RehearsalMessage, server: str, token: str | None) -> int:
    """Store a rehearsal on the server, and return its id. Raises DeliveryError."""
    client = ApiClient(server, token, {"Content-Type": MSGPACK}, local_scope="ingest")
    with closing(client):
        answer = client.request("/api/v1/rehearsals", method="POST", body=encode(message))
    number = answer.fields().get("id")
    if answer.status != 201 or not isinstance(number, int):
        detail = problem_detail(answer.body)
        raise DeliveryError(f"{server} answered {answer.status} to a rehearsal{detail}")
    return number


def explain(error: BaseException) -> str:
    """Return what is wrong with a connection, and what to do."""
    # urllib3 wraps the real error, as reason or as cause
    errors = (error, error.__cause__, getattr(error, "reason", None))
    names = {kind.__name__ for item in errors if item is not None for kind in type(item).__mro__}
    reasons = (reason for name, reason in _REASONS.items() if name in names)
    return next(reasons, str(error) or type(error).__name__)


def problem_detail(body: bytes) -> str:
    """Return `: detail` of a problem response, empty if it has none."""
    try:
        problem = msgspec.json.decode(body[:_MAX_PROBLEM_BYTES], type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return f": {problem['detail']}" if problem.get("detail") else ""


class HttpTransport(Transport):
    """Delivers envelopes over HTTP. `replayed`: they are of processes that have ended."""

    def __init__(self, server: str, token: str | None = None, *, replayed: bool = False) -> None:
        headers = {"Content-Type": MSGPACK, **({REPLAYED_HEADER: "1"} if replayed else {})}
        self._client = ApiClient(server, token, headers, local_scope="ingest")

    def deliver(self, item: Envelope, *, timeout_s: float) -> Reply | None:
        path = _PATHS[item.kind].format(run_id=item.run_id)
        response = self._client.request(path, method="POST", body=item.body, timeout_s=timeout_s)
        if not 200 <= response.status < 300:
            raise self._error(item, response)
        if item.kind == "start":
            return _start_reply(response.body)
        if item.kind != "batch":
            return None
        try:
            return msgspec.json.decode(response.body, type=BatchReply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DeliveryError(
                f"{self._client.server} sent a reply that isn't a memagent server's"
            ) from error

    def close(self) -> None:
        self._client.close()

    def _error(self, item: Envelope, response: ApiResponse) -> DeliveryError:
        status, detail = response.status, problem_detail(response.body)
        message = f"{self._client.server} answered {status} to a {item.kind}{detail}"
        if status == 404 and item.kind != "start":
            return StartRequiredError(message)
        if 400 <= status < 500 and status not in _RETRIABLE:
            return RejectedError(message)
        retry_after = response.headers.get("retry-after", "")
        delay = float(retry_after) if retry_after.isdigit() else None
        return DeliveryError(message, retry_after_s=delay)


def _start_reply(body: bytes) -> StartReply | None:
    """Return the reply, None if it's of another version: a run needs nothing of it."""
    try:
        return msgspec.json.decode(body, type=StartReply)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def hide_log_records() -> None:
    """Keep what urllib3 logs on threads of memagent out of the script's log."""
    for name in ("urllib3.connectionpool", "urllib3.util.retry"):
        logging.getLogger(name).addFilter(_is_of_script)


def _is_of_script(record: logging.LogRecord) -> bool:
    return not (record.threadName or "").startswith("memagent")
