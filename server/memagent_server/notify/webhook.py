"""Any HTTP endpoint: each transition as JSON, signed, so that the receiver can verify the sender.

`X-Memagent-Signature: v1=HEX` is the HMAC-SHA256 of `X-Memagent-Timestamp`, a full stop and the
body, with MEMAGENT_WEBHOOK_SECRET as the key. All deliveries of a transition have the same
`Idempotency-Key`.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import asdict

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, Receipt, secret_parts
from memagent_server.notify.message_text import plain_text
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings

_INTERNAL_FIELDS = ("receipt", "curve", "is_overtaken", "folded")
_FINAL_STATUSES = (410,)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.webhook_url:
        return None
    return Webhook(
        settings.webhook_url, settings.webhook_secret, allow_local=settings.allow_local_webhooks
    )


class Webhook(Channel):
    """`clock` returns Unix time."""

    follows_up = True

    def __init__(
        self,
        url: str,
        secret: str | None,
        *,
        allow_local: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._secret = secret
        self._allow_local = allow_local
        self._clock = clock
        self.secrets = (*secret_parts(url), secret or "")

    def send(self, message: AlertMessage) -> Receipt:
        body = msgspec.json.encode(_payload(message))
        response = http_client.send_json(
            self._url,
            body,
            service="the webhook",
            headers={"Idempotency-Key": message.dedup_key, **self._signature(body)},
            allow_local=self._allow_local,
            final_statuses=_FINAL_STATUSES,
            show_response=False,
        )
        return {"status": response.status}

    def _signature(self, body: bytes) -> dict[str, str]:
        if self._secret is None:
            return {}
        timestamp = str(int(self._clock()))
        return {
            "X-Memagent-Timestamp": timestamp,
            "X-Memagent-Signature": sign(self._secret, timestamp, body),
        }


def _payload(message: AlertMessage) -> JsonObject:
    fields = asdict(message)
    for name in _INTERNAL_FIELDS:
        del fields[name]
    # All fields of the suspect: a Struct leaves out those with default values.
    suspect = message.suspect.to_dict() if message.suspect is not None else None
    return {**fields, "suspect": suspect, "text": plain_text(message)}


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature header; docs/notifications.md shows receivers how to check it."""
    signed = timestamp.encode() + b"." + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
