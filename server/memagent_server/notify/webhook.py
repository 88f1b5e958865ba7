"""Any HTTP endpoint: each transition as JSON, signed, so that the receiver can tell who sent it and when.

`X-Memagent-Signature: v1=HEX` is the HMAC-SHA256 of `X-Memagent-Timestamp`, a full stop and the body, keyed by MEMAGENT_WEBHOOK_SECRET.
`Idempotency-Key` is the same for every delivery of one transition.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, parts_of_address
from memagent_server.notify.message_text import plain_text
from memagent_server.settings import Settings

_OURS = ("receipt", "curve", "is_overtaken")
_GONE = (410,)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.webhook_url:
        return None
    return Webhook(
        settings.webhook_url, settings.webhook_secret, allow_local=settings.allow_local_webhooks
    )


class Webhook(Channel):
    """`clock` gives seconds since the epoch."""

    def __init__(
        self,
        url: str,
        secret: str | None,
        *,
        allow_local: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._secret, self._allow_local, self._clock = url, secret, allow_local, clock
        self.secrets = (*parts_of_address(url), secret or "")

    def send(self, story: AlertMessage) -> dict[str, Any]:
        facts = {name: value for name, value in asdict(story).items() if name not in _OURS}
        body = msgspec.json.encode({**facts, "text": plain_text(story)})
        headers = {"Idempotency-Key": story.dedup_key, **self._signature(body)}
        reply = http_client.post(
            self._url,
            body,
            who="the webhook",
            headers=headers,
            allow_local=self._allow_local,
            final=_GONE,
            show_answer=False,
        )
        return {"status": reply.status}

    def _signature(self, body: bytes) -> dict[str, str]:
        if self._secret is None:
            return {}
        timestamp = str(int(self._clock()))
        return {
            "X-Memagent-Timestamp": timestamp,
            "X-Memagent-Signature": sign(self._secret, timestamp, body),
        }


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The signature's header, as docs/notifications.md tells receivers to check it."""
    return (
        "v1="
        + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    )
