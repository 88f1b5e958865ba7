"""Microsoft Teams by a Workflows webhook: one Adaptive Card a transition.

(https://learn.microsoft.com/power-automate/teams/send-a-message-in-teams, the trigger "When a Teams webhook request is received")
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, parts_of_address
from memagent_server.notify.message_text import (
    advice,
    cut,
    details,
    headline,
    needs_runbook,
    saving,
    where,
)
from memagent_server.settings import Settings

TEXT_LIMIT = 4000
"""A card may hold 28 kB in all."""
_GONE = (400, 401, 403, 404, 410)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.teams_webhook_url:
        return None
    return Teams(settings.teams_webhook_url, allow_local=settings.allow_local_webhooks)


class Teams(Channel):
    """The address of a workflow holds its signature: it is a secret and appears in no message."""

    def __init__(self, url: str, *, allow_local: bool = False) -> None:
        self._url, self._allow_local = url, allow_local
        self.secrets = parts_of_address(url)

    def send(self, story: AlertMessage) -> dict[str, Any]:
        card = {
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": _card(story),
        }
        body = msgspec.json.encode({"type": "message", "attachments": [card]})
        reply = http_client.post(
            self._url, body, who="Teams' webhook", allow_local=self._allow_local, final=_GONE
        )
        return {"status": reply.status}


def _card(story: AlertMessage) -> dict[str, Any]:
    found, saves = advice(story), saving(story)
    body = [
        _text(headline(story), size="Medium", weight="Bolder"),
        _text(where(story), isSubtle=True, spacing="None"),
    ]
    body += [_text(line) for line in details(story)]
    if found is not None:
        body += [
            _text(f"Cause: {story.facts['cause']}. {found.summary}"),
            _text(f"What to change: {found.change}"),
        ]
        body += [
            _text(line, fontType="Monospace", spacing="None") for line in found.code.splitlines()
        ]
    if saves:
        body.append(_text(saves))
    actions = [{"type": "Action.OpenUrl", "title": "Open run", "url": story.run_url}]
    if story.to_state == "firing":
        actions.append(
            {"type": "Action.OpenUrl", "title": "Snooze or acknowledge", "url": story.alert_url}
        )
    if needs_runbook(story):
        actions.append({"type": "Action.OpenUrl", "title": "What to do", "url": story.runbook_url})
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
        "actions": actions,
    }


def _text(words: str, **style: Any) -> dict[str, Any]:
    literal = re.sub(r"([\\`*_\[\]])", r"\\\1", cut(words, TEXT_LIMIT))
    return {"type": "TextBlock", "text": literal, "wrap": True, **style}
