"""Slack by incoming webhook: one message for each transition. A webhook answers no ts, so nothing can be edited later."""

from __future__ import annotations

from typing import Any

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, parts_of_address
from memagent_server.notify.slack_message import blocks, text
from memagent_server.settings import Settings

_GONE = (400, 403, 404, 410)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.slack_webhook_url:
        return None
    return SlackWebhook(settings.slack_webhook_url, allow_local=settings.allow_local_webhooks)


class SlackWebhook(Channel):
    """The address of a webhook is a secret: it appears in no message."""

    def __init__(self, url: str, *, allow_local: bool = False) -> None:
        self._url, self._allow_local = url, allow_local
        self.secrets = parts_of_address(url)

    def send(self, story: AlertMessage) -> dict[str, Any]:
        body = msgspec.json.encode({"text": text(story), "blocks": blocks(story)})
        reply = http_client.post(
            self._url, body, who="Slack's webhook", allow_local=self._allow_local, final=_GONE
        )
        return {"status": reply.status}
