"""Slack by incoming webhook: one message for each transition. A webhook answers no ts, so nothing can be edited later."""

from __future__ import annotations

from http.client import HTTPException
from typing import Any

from slack_sdk.errors import SlackClientError
from slack_sdk.webhook import WebhookClient

from memagent_server.notify.channel import DeliveryFailedError, Story, retry_after_s
from memagent_server.notify.slack_message import blocks, escape, plain_text

TIMEOUT_S = 10
_GONE = (403, 404, 410)


class SlackWebhook:
    """The address of a webhook is a secret: it appears in no message."""

    def __init__(self, url: str) -> None:
        self._client = WebhookClient(url, timeout=TIMEOUT_S)

    def send(self, story: Story) -> dict[str, Any]:
        try:
            response = self._client.send(text=escape(plain_text(story)), blocks=blocks(story))
        except (SlackClientError, HTTPException, OSError) as error:
            raise DeliveryFailedError(f"Slack could not be reached: {type(error).__name__}") from None
        if response.status_code == 200:
            return {}
        raise DeliveryFailedError(
            f"Slack's webhook answered {response.status_code}: {response.body[:100]}",
            retry_after_s=retry_after_s(response.headers),
            is_final=response.status_code in _GONE,
        )
