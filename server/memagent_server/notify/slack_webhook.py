"""Slack by incoming webhook: one message per transition. Webhooks can't edit what they sent."""

from __future__ import annotations

from memagent_server.notify.channel import AlertMessage, Channel
from memagent_server.notify.http_client import WebhookChannel
from memagent_server.notify.slack_message import blocks, text
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings


def from_settings(settings: Settings) -> Channel | None:
    if not settings.slack_webhook_url:
        return None
    return SlackWebhook(settings.slack_webhook_url, allow_local=settings.allow_local_webhooks)


class SlackWebhook(WebhookChannel):
    service = "Slack's webhook"
    final_statuses = (400, 403, 404, 410)

    def payload(self, message: AlertMessage) -> JsonObject:
        return {"text": text(message), "blocks": blocks(message)}
