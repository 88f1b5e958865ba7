"""Channels: one module each, alike inside. Adding one is copying its neighbour and an entry in CHANNELS."""

from __future__ import annotations

from collections.abc import Callable

from memagent_server.notify import (
    alertmanager,
    discord,
    email,
    grafana,
    pagerduty,
    slack_bot,
    slack_webhook,
    teams,
    webhook,
)
from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError
from memagent_server.settings import Settings

__all__ = ["CHANNELS", "NEEDS", "AlertMessage", "Channel", "DeliveryFailedError", "channels"]

CHANNELS: dict[str, Callable[[Settings], Channel | None]] = {
    "slack_bot": slack_bot.from_settings,
    "slack_webhook": slack_webhook.from_settings,
    "webhook": webhook.from_settings,
    "email": email.from_settings,
    "pagerduty": pagerduty.from_settings,
    "alertmanager": alertmanager.from_settings,
    "discord": discord.from_settings,
    "teams": teams.from_settings,
    "grafana": grafana.from_settings,
}
"""By name; each gives the channel that the settings describe, or None where they describe none."""

NEEDS: dict[str, tuple[str, ...]] = {
    "slack_bot": ("MEMAGENT_SLACK_BOT_TOKEN", "MEMAGENT_SLACK_CHANNEL"),
    "slack_webhook": ("MEMAGENT_SLACK_WEBHOOK_URL",),
    "webhook": ("MEMAGENT_WEBHOOK_URL",),
    "email": ("MEMAGENT_SMTP_URL", "MEMAGENT_EMAIL_FROM", "MEMAGENT_EMAIL_TO"),
    "pagerduty": ("MEMAGENT_PAGERDUTY_ROUTING_KEY",),
    "alertmanager": ("MEMAGENT_ALERTMANAGER_URL",),
    "discord": ("MEMAGENT_DISCORD_WEBHOOK_URL",),
    "teams": ("MEMAGENT_TEAMS_WEBHOOK_URL",),
    "grafana": ("MEMAGENT_GRAFANA_URL", "MEMAGENT_GRAFANA_TOKEN"),
}
"""The settings without which there is no such channel: what to say to somebody who wants one."""


def channels(settings: Settings) -> dict[str, Channel]:
    """The channels that are set up, by name."""
    made = {name: make(settings) for name, make in CHANNELS.items()}
    return {name: channel for name, channel in made.items() if channel is not None}
