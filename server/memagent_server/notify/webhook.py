"""Any HTTP endpoint: each transition as JSON, signed, so that the receiver can tell who sent it.

`X-Memagent-Signature: sha256=HEX` is the HMAC-SHA256 of the body, keyed by the server's secret key; `Idempotency-Key` is the same for
every delivery of one transition.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict
from typing import Any

import msgspec
import urllib3

from memagent_server.notify.channel import DeliveryFailedError, Story, retry_after_s
from memagent_server.notify.slack_message import plain_text

TIMEOUT_S = 10.0


class Webhook:
    def __init__(self, url: str, secret_key: str) -> None:
        self._url, self._key = url, secret_key.encode()
        self._pool = urllib3.PoolManager(retries=False)

    def send(self, story: Story) -> dict[str, Any]:
        facts = asdict(story)
        facts.pop("receipt")
        body = msgspec.json.encode({**facts, "text": plain_text(story)})
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": story.dedup_key,
            "X-Memagent-Signature": f"sha256={hmac.new(self._key, body, hashlib.sha256).hexdigest()}",
        }
        try:
            response = self._pool.request(
                "POST", self._url, body=body, headers=headers, timeout=TIMEOUT_S, redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise DeliveryFailedError(f"the webhook could not be reached: {type(error).__name__}") from None
        if 200 <= response.status < 300:
            return {}
        raise DeliveryFailedError(
            f"the webhook answered {response.status}",
            retry_after_s=retry_after_s(response.headers),
            is_final=response.status == 410,
        )
