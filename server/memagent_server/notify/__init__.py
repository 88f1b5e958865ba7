"""Channels: one module each, alike inside. Adding one is copying its neighbour and an entry in `channels`."""

from __future__ import annotations

from memagent_server.notify.channel import Channel, DeliveryFailedError
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.webhook import Webhook
from memagent_server.settings import Settings

__all__ = ["Channel", "DeliveryFailedError", "channels"]


def channels(settings: Settings) -> dict[str, Channel]:
    """The channels that are set up, by name."""
    found: dict[str, Channel] = {}
    if settings.slack_bot_token and settings.slack_channel:
        found["slack_bot"] = SlackBot(settings.slack_bot_token, settings.slack_channel)
    if settings.slack_webhook_url:
        found["slack_webhook"] = SlackWebhook(settings.slack_webhook_url)
    if settings.webhook_url:
        found["webhook"] = Webhook(settings.webhook_url, settings.secret_key)
    return found
