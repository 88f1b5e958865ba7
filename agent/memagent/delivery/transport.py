"""Delivery to a server over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from memagent import __version__
from memagent.delivery.envelope import Envelope, Kind, Transport
from memagent.errors import DeliveryError, RejectedError
from memagent.wire.codec import MSGPACK, REPLAYED_HEADER
from memagent.wire.messages import BatchReply

_PATHS: dict[Kind, str] = {
    "start": "/api/v1/runs",
    "batch": "/api/v1/runs/{run_id}/batches",
    "prediction": "/api/v1/runs/{run_id}/predictions",
    "snapshot": "/api/v1/runs/{run_id}/snapshots",
    "finish": "/api/v1/runs/{run_id}/finish",
}
_WORTH_ANOTHER_TRY = (401, 403, 408, 425, 429)
"""Of the 4xx, those that a person or time can mend: a token that is replaced, a server that is busy."""


class UnknownRunError(DeliveryError):
    """The server does not know the run: its start must be delivered (again) first."""


class HttpTransport(Transport):
    """One kept connection to the server. The token is sent with each request and kept out of every message and repr.

    `replayed`: what is sent is of processes that have ended.
    """

    def __init__(self, server: str, token: str | None = None, *, replayed: bool = False) -> None:
        self._server = server
        self._headers = {
            "Content-Type": MSGPACK,
            "Accept": "application/json",
            "User-Agent": f"memagent/{__version__}",
        }
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        if replayed:
            self._headers[REPLAYED_HEADER] = "1"
        self._pool: Any = None

    def deliver(self, item: Envelope, *, timeout_s: float) -> BatchReply | None:
        import urllib3  # 40 ms and more: paid by the sender's thread, not by attach()

        if self._pool is None:
            self._pool = urllib3.PoolManager(
                num_pools=1, maxsize=1, retries=False, headers=self._headers
            )
        url = self._server + _PATHS[item.kind].format(run_id=item.run_id)
        try:
            response = self._pool.request(
                "POST",
                url,
                body=item.body,
                timeout=urllib3.Timeout(total=timeout_s),
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise DeliveryError(f"{self._server} cannot be reached: {_reason(error)}") from error
        if 200 <= response.status < 300:
            return self._reply(item, response.data)
        raise self._refusal(
            item, response.status, response.headers.get("Retry-After"), response.data
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.clear()

    def _reply(self, item: Envelope, body: bytes) -> BatchReply | None:
        if item.kind != "batch":
            return None
        try:
            return msgspec.json.decode(body, type=BatchReply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DeliveryError(
                f"{self._server} answered something that is no reply of a memagent server"
            ) from error

    def _refusal(
        self, item: Envelope, status: int, retry_after: str | None, body: bytes
    ) -> DeliveryError:
        message = f"{self._server} answered {status} to a {item.kind}{_detail(body)}"
        if status == 404 and item.kind != "start":
            return UnknownRunError(message)
        if 400 <= status < 500 and status not in _WORTH_ANOTHER_TRY:
            return RejectedError(message)
        delay = float(retry_after) if retry_after and retry_after.isdigit() else None
        return DeliveryError(message, retry_after_s=delay)


def _detail(body: bytes) -> str:
    try:
        problem = msgspec.json.decode(body[:10_000], type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return f": {problem['detail']}" if problem.get("detail") else ""


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None)
    return type(cause or error).__name__
