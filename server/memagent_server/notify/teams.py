"""Microsoft Teams by a Workflows webhook: one Adaptive Card per transition.

https://learn.microsoft.com/power-automate/teams/send-a-message-in-teams, the trigger "When a Teams
webhook request is received". The address holds the workflow's signature.
"""

from __future__ import annotations

import re
from typing import Any

from memagent_server.notify.channel import AlertMessage, Channel
from memagent_server.notify.http_client import WebhookChannel
from memagent_server.notify.message_text import (
    cause_advice,
    details,
    headline,
    needs_runbook,
    origin,
    saving_line,
    truncate,
)
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings

TEXT_LIMIT = 4000
"""Characters of one block; a whole card may have 28 kB."""


def from_settings(settings: Settings) -> Channel | None:
    if not settings.teams_webhook_url:
        return None
    return Teams(settings.teams_webhook_url, allow_local=settings.allow_local_webhooks)


class Teams(WebhookChannel):
    service = "Teams' webhook"
    final_statuses = (400, 401, 403, 404, 410)
    folds = True
    follows_up = True

    def payload(self, message: AlertMessage) -> JsonObject:
        card = {
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": _card(message),
        }
        return {"type": "message", "attachments": [card]}


def _card(message: AlertMessage) -> JsonObject:
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": _body(message),
        "actions": _actions(message),
    }


def _body(message: AlertMessage) -> list[JsonObject]:
    body = [
        _text(headline(message), size="Medium", weight="Bolder"),
        _text(origin(message), isSubtle=True, spacing="None"),
        *(_text(line) for line in details(message)),
    ]
    advice, saving = cause_advice(message), saving_line(message)
    if advice is not None:
        code = advice.code.splitlines()
        body += [
            _text(f"Cause: {message.facts['cause']}. {advice.summary}"),
            _text(f"What to change: {advice.change}"),
            *(_text(line, fontType="Monospace", spacing="None") for line in code),
        ]
    return [*body, _text(saving)] if saving else body


def _actions(message: AlertMessage) -> list[dict[str, str]]:
    if message.folded:
        return [{"type": "Action.OpenUrl", "title": "Open alerts", "url": message.run_url}]
    if message.to_state == "digest":
        return [{"type": "Action.OpenUrl", "title": "Open memagent", "url": message.run_url}]
    links = [("Open run", message.run_url)]
    if message.to_state == "firing":
        links.append(("Snooze or acknowledge", message.alert_url))
    if needs_runbook(message):
        links.append(("Runbook", message.runbook_url))
    return [{"type": "Action.OpenUrl", "title": title, "url": url} for title, url in links]


def _text(text: str, **style: Any) -> JsonObject:
    literal = re.sub(r"([\\`*_\[\]])", r"\\\1", truncate(text, TEXT_LIMIT))
    return {"type": "TextBlock", "text": literal, "wrap": True, **style}
