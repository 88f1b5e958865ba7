"""Notification channels, a module each. To add one, copy its neighbour and add it to CHANNELS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from memagent_server.settings.channels import ADDRESSES

__all__ = [
    "CHANNELS",
    "REQUIRED_SETTINGS",
    "AlertMessage",
    "Channel",
    "DeliveryFailedError",
    "channels",
]

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
"""Factories by name; each returns None if the settings don't describe such a channel."""

REQUIRED_SETTINGS: dict[str, tuple[str, ...]] = {
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
"""Settings that a channel requires, for messages to people who want to configure it."""


def channels(settings: Settings) -> dict[str, Channel]:
    """Return the configured channels by name: those of the settings, then those with names."""
    candidates = {name: from_settings(settings) for name, from_settings in CHANNELS.items()}
    for item in settings.channels:
        if item.kind == "apprise":
            # its package is an extra
            from memagent_server.notify.apprise_channel import AppriseChannel

            candidates[item.name] = AppriseChannel(item.address)
            continue
        own: dict[str, Any] = {ADDRESSES[item.kind]: item.value}
        candidates[item.name] = CHANNELS[item.kind](replace(settings, **own))
    return {name: channel for name, channel in candidates.items() if channel is not None}
