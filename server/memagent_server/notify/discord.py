"""Discord by webhook: one message a transition. (https://discord.com/developers/docs/resources/webhook#execute-webhook)"""

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

TITLE_LIMIT, DESCRIPTION_LIMIT, FOOTER_LIMIT = 256, 4096, 2048
_GONE = (400, 401, 403, 404)
_COLOURS = {"averted": 0x16A34A, "finished": 0x16A34A, "test": 0x2563EB, "warning": 0xF59E0B}
_RED = 0xDC2626


def from_settings(settings: Settings) -> Channel | None:
    if not settings.discord_webhook_url:
        return None
    return Discord(settings.discord_webhook_url, allow_local=settings.allow_local_webhooks)


class Discord(Channel):
    """The address of a webhook is a secret: it appears in no message."""

    def __init__(self, url: str, *, allow_local: bool = False) -> None:
        self._url, self._allow_local = url, allow_local
        self.secrets = parts_of_address(url)

    def send(self, story: AlertMessage) -> dict[str, Any]:
        body = msgspec.json.encode({"embeds": [_embed(story)], "allowed_mentions": {"parse": []}})
        reply = http_client.post(
            self._url, body, who="Discord's webhook", allow_local=self._allow_local, final=_GONE
        )
        return {"status": reply.status}


def _embed(story: AlertMessage) -> dict[str, Any]:
    key = story.to_state if story.to_state != "firing" else story.severity
    return {
        "title": cut(_escape(headline(story)), TITLE_LIMIT),
        "url": story.run_url,
        "color": _COLOURS.get(key, _RED),
        "description": cut("\n".join(_lines(story)), DESCRIPTION_LIMIT),
        "footer": {"text": cut(where(story), FOOTER_LIMIT)},
    }


def _lines(story: AlertMessage) -> list[str]:
    lines = [_escape(line) for line in details(story)]
    found, saves = advice(story), saving(story)
    if found is not None:
        lines += [
            f"**Cause: {story.facts['cause']}.** {found.summary}",
            f"**What to change:** {found.change}",
        ]
        lines += [f"```python\n{found.code}\n```"] if found.code else []
    lines += [_escape(saves)] if saves else []
    lines += [f"[Snooze or acknowledge]({story.alert_url})"] if story.to_state == "firing" else []
    lines += [f"[What to do]({story.runbook_url})"] if needs_runbook(story) else []
    return lines


def _escape(text: str) -> str:
    """Discord's Markdown, taken literally."""
    return re.sub(r"([\\`*_~|>\[\]#])", r"\\\1", text)
