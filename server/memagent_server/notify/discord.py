"""Discord by webhook: one message per transition.

https://discord.com/developers/docs/resources/webhook#execute-webhook
"""

from __future__ import annotations

import re

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

TITLE_LIMIT = 256
DESCRIPTION_LIMIT = 4096
FOOTER_LIMIT = 2048
_COLOURS = {
    "averted": 0x16A34A,
    "finished": 0x16A34A,
    "test": 0x2563EB,
    "digest": 0x2563EB,
    "warning": 0xF59E0B,
}
_RED = 0xDC2626


def from_settings(settings: Settings) -> Channel | None:
    if not settings.discord_webhook_url:
        return None
    return Discord(settings.discord_webhook_url, allow_local=settings.allow_local_webhooks)


class Discord(WebhookChannel):
    service = "Discord's webhook"
    final_statuses = (400, 401, 403, 404)
    folds = True
    follows_up = True

    def payload(self, message: AlertMessage) -> JsonObject:
        key = message.to_state if message.to_state != "firing" else message.severity
        embed = {
            "title": truncate(_escape(headline(message)), TITLE_LIMIT),
            "url": message.run_url,
            "color": _COLOURS.get(key, _RED),
            "description": truncate("\n".join(_lines(message)), DESCRIPTION_LIMIT),
            "footer": {"text": truncate(origin(message), FOOTER_LIMIT)},
        }
        return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _lines(message: AlertMessage) -> list[str]:
    lines = [_escape(line) for line in details(message)]
    advice, saving = cause_advice(message), saving_line(message)
    if advice is not None:
        lines += [
            f"**Cause: {message.facts['cause']}.** {advice.summary}",
            f"**What to change:** {advice.change}",
        ]
        lines += [f"```python\n{advice.code}\n```"] if advice.code else []
    lines += [_escape(saving)] if saving else []
    if message.to_state == "firing" and not message.folded:
        lines.append(f"[Snooze or acknowledge]({message.alert_url})")
    if needs_runbook(message):
        lines.append(f"[Runbook]({message.runbook_url})")
    return lines


def _escape(text: str) -> str:
    """Escape Discord's Markdown."""
    return re.sub(r"([\\`*_~|>\[\]#])", r"\\\1", text)
