"""A Slack message: a `AlertMessage` in, text and blocks out. Pure.

`text` tells the whole story by itself: it is what notifications on a phone, screen readers and plain logs show.
"""

from __future__ import annotations

from typing import Any

from memagent_server.notify.channel import AlertMessage
from memagent_server.notify.message_text import (
    advice,
    cut,
    details,
    headline,
    needs_runbook,
    plain_text,
    saving,
    where,
)

SECTION_LIMIT, HEADER_LIMIT, TEXT_LIMIT, URL_LIMIT = 3000, 150, 4000, 3000
"""Slack's: sections and context elements, headers, what it advises for `text`, addresses of buttons."""

_MARKS = {"averted": "🟢", "finished": "🟢", "oom": "💥", "lost_contact": "⚪", "test": "🔔"}


def text(story: AlertMessage) -> str:
    """The whole story, for where blocks are not shown."""
    return cut_escaped(plain_text(story), TEXT_LIMIT)


def short_text(story: AlertMessage) -> str:
    """What happened, without what the message it answers to says already."""
    return cut_escaped("\n".join([headline(story), *details(story)]), TEXT_LIMIT)


def blocks(story: AlertMessage) -> list[dict[str, Any]]:
    """Block Kit: headline, where, facts, cause with code, and buttons that open the run and the alert."""
    found: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(f"{_mark(story)} {headline(story)}", HEADER_LIMIT)},
        {
            "type": "context",
            "elements": [{"type": "mrkdwn", "text": cut_escaped(where(story), SECTION_LIMIT)}],
        },
    ]
    facts = "\n".join(details(story))
    if facts:
        found.append(_section(facts))
    suggestion = _suggestion(story)
    if suggestion:
        found.append(suggestion)
    return [*found, {"type": "actions", "elements": _buttons(story)}]


def escape(text: str) -> str:
    """Slack's three control characters (docs: formatting text for app surfaces)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cut_escaped(text: str, limit: int) -> str:
    """Escaped `text` in at most `limit` characters; no escape sequence is cut in two."""
    escaped = escape(text)
    while len(escaped) > limit:
        text = cut(text, max(1, len(text) - (len(escaped) - limit + 4) // 5 - 1))
        escaped = escape(text)
    return escaped


def _mark(story: AlertMessage) -> str:
    return _MARKS.get(story.to_state) or ("🔴" if story.severity == "critical" else "🟠")


def _suggestion(story: AlertMessage) -> dict[str, Any] | None:
    found, saves = advice(story), saving(story)
    lines = []
    if found is not None:
        lines += [f"*Cause: {escape(str(story.facts['cause']))}.* {escape(found.summary)}"]
        lines += [f"*What to change:* {escape(found.change)}"]
        lines += [f"```{escape(found.code)}```"] if found.code else []
    if saves:
        lines.append(escape(saves))
    if not lines:
        return None
    whole = "\n".join(lines)
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(whole, SECTION_LIMIT)}}


def _buttons(story: AlertMessage) -> list[dict[str, Any]]:
    if story.to_state == "test":
        return [_button("open", "Open memagent", story.run_url, "primary")]
    buttons = [_button("open", "Open run", story.run_url, "primary")]
    if story.to_state == "firing":
        buttons.append(_button("snooze", "Snooze or acknowledge", story.alert_url))
    if needs_runbook(story):
        buttons.append(_button("runbook", "What to do", story.runbook_url))
    return buttons


def _button(action: str, label: str, url: str, style: str | None = None) -> dict[str, Any]:
    button = {
        "type": "button",
        "action_id": action,
        "text": _plain(label, 75),
        "url": url[:URL_LIMIT],
    }
    return {**button, "style": style} if style else button


def _plain(words: str, limit: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": cut(words, limit), "emoji": True}


def _section(words: str) -> dict[str, Any]:
    return {
        "type": "section",
        "text": {"type": "mrkdwn", "text": cut_escaped(words, SECTION_LIMIT)},
    }
