"""Slack by incoming webhook: one message per transition. Webhooks can't edit what they sent.

The message has text and blocks, for the bot too. `text` holds the whole message by itself: phones,
screen readers and logs show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from memagent_server.notify.channel import AlertMessage, Channel, Receipt
from memagent_server.notify.http_client import WebhookChannel
from memagent_server.notify.message_text import (
    cause_advice,
    details,
    headline,
    needs_runbook,
    origin,
    plain_text,
    saving_line,
    truncate,
)
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings
from memagent_server.store.incidents import IncidentAction

SECTION_LIMIT = 3000
"""Slack's limit on sections and context elements."""
HEADER_LIMIT = 150
TEXT_LIMIT = 4000
"""Slack's recommendation for `text`."""
BUTTON_LIMIT = 75
URL_LIMIT = 3000

MESSAGE_INTERVAL_S = 1.0
"""Slack accepts about one message a second per channel or webhook (docs: rate limits)."""

ACTION_PREFIX = "memagent-"
"""Of the ids of buttons that change something; the ids of links have none."""
ACTION_LABELS: Mapping[IncidentAction, str] = {
    "ack": "Acknowledge",
    "snooze": "Snooze for an hour",
    "false-alarm": "False alarm",
}

_MARKS = {
    "averted": "🟢",
    "finished": "🟢",
    "oom": "💥",
    "lost_contact": "⚪",
    "test": "🔔",
    "digest": "🗒️",
}
_FALSE_ALARM_DIALOG: JsonObject = {
    "title": {"type": "plain_text", "text": "Is it a false alarm?"},
    "text": {
        "type": "plain_text",
        "text": "You will hear no more of this alert, unless the run dies.",
    },
    "confirm": {"type": "plain_text", "text": "False alarm"},
    "deny": {"type": "plain_text", "text": "Cancel"},
}


def text(message: AlertMessage) -> str:
    """Return the whole message, for clients that don't show blocks."""
    return truncate_escaped(plain_text(message), TEXT_LIMIT)


def short_text(message: AlertMessage) -> str:
    """Return what happened, for a reply in the thread of an earlier message."""
    return truncate_escaped("\n".join([headline(message), *details(message)]), TEXT_LIMIT)


def blocks(message: AlertMessage, *, can_act: bool = False) -> list[JsonObject]:
    """Return Block Kit blocks: headline, origin, facts, cause with code, and buttons.

    `can_act`: memagent hears of a pressed button, by `slack_actions`.
    """
    title = truncate(f"{_mark(message)} {headline(message)}", HEADER_LIMIT)
    origin_text = truncate_escaped(origin(message), SECTION_LIMIT)
    result: list[JsonObject] = [
        {"type": "header", "text": _plain(title)},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": origin_text}]},
    ]
    facts = "\n".join(details(message))
    if facts:
        result.append(_section(truncate_escaped(facts, SECTION_LIMIT)))
    suggestion = "\n".join(_suggestion_lines(message))
    if suggestion:
        result.append(_section(truncate(suggestion, SECTION_LIMIT)))
    return [*result, {"type": "actions", "elements": _buttons(message, can_act)}]


def escape(text: str) -> str:
    """Escape Slack's three control characters."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def truncate_escaped(text: str, limit: int) -> str:
    """Return escaped `text` of at most `limit` characters, without a cut escape sequence."""
    escaped = escape(text)
    while len(escaped) > limit:
        # An escaped character takes at most five: cut so much that another round is rare.
        text = truncate(text, max(1, len(text) - (len(escaped) - limit + 4) // 5 - 1))
        escaped = escape(text)
    return escaped


def _mark(message: AlertMessage) -> str:
    return _MARKS.get(message.to_state) or ("🔴" if message.severity == "critical" else "🟠")


def _suggestion_lines(message: AlertMessage) -> list[str]:
    advice, saving = cause_advice(message), saving_line(message)
    lines = []
    if advice is not None:
        lines += [f"*Cause: {escape(str(message.facts['cause']))}.* {escape(advice.summary)}"]
        lines += [f"*What to change:* {escape(advice.change)}"]
        lines += [f"```{escape(advice.code)}```"] if advice.code else []
    return [*lines, escape(saving)] if saving else lines


def _buttons(message: AlertMessage, can_act: bool) -> list[JsonObject]:
    if message.folded:
        return [_button("open", "Open alerts", message.run_url, "primary")]
    if message.to_state in ("test", "digest"):
        return [_button("open", "Open memagent", message.run_url, "primary")]
    buttons = [_button("open", "Open run", message.run_url, "primary")]
    if message.to_state == "firing" and can_act:
        buttons += _action_buttons(message)
    elif message.to_state == "firing":
        buttons.append(_button("snooze", "Snooze or acknowledge", message.alert_url))
    if needs_runbook(message):
        buttons.append(_button("runbook", "Runbook", message.runbook_url))
    return buttons


def _action_buttons(message: AlertMessage) -> list[JsonObject]:
    """Return the buttons for what people have not done yet; their value finds the alert again."""
    if message.false_alarm_at is not None:
        return []
    done = {"ack"} if message.acked_by else set()
    return [
        {
            "type": "button",
            "action_id": f"{ACTION_PREFIX}{action}",
            "text": _plain(label),
            "value": message.dedup_key,
            **({"confirm": _FALSE_ALARM_DIALOG} if action == "false-alarm" else {}),
        }
        for action, label in ACTION_LABELS.items()
        if action not in done
    ]


def _button(action: str, label: str, url: str, style: str | None = None) -> JsonObject:
    button = {
        "type": "button",
        "action_id": action,
        "text": _plain(truncate(label, BUTTON_LIMIT)),
        "url": url[:URL_LIMIT],
    }
    return {**button, "style": style} if style else button


def _plain(text: str) -> JsonObject:
    return {"type": "plain_text", "text": text, "emoji": True}


def _section(text: str) -> JsonObject:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def from_settings(settings: Settings) -> Channel | None:
    if not settings.slack_webhook_url:
        return None
    return SlackWebhook(settings.slack_webhook_url, allow_local=settings.allow_local_webhooks)


class Pace:
    """Keeps messages MESSAGE_INTERVAL_S apart."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._last_message_s = float("-inf")

    def wait(self) -> None:
        wait_s = self._last_message_s + MESSAGE_INTERVAL_S - time.monotonic()
        if wait_s > 0:
            self._sleep(wait_s)
        self._last_message_s = time.monotonic()


class SlackWebhook(WebhookChannel):
    """`sleep` keeps the interval between two messages."""

    service = "Slack's webhook"
    final_statuses = (400, 403, 404, 410)
    folds = True
    follows_up = True

    def __init__(
        self, url: str, *, allow_local: bool = False, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(url, allow_local=allow_local)
        self._pace = Pace(sleep)

    def send(self, message: AlertMessage) -> Receipt:
        self._pace.wait()
        return super().send(message)

    def payload(self, message: AlertMessage) -> JsonObject:
        return {"text": text(message), "blocks": blocks(message)}
