"""The words of a Slack message: a `Story` in, text and blocks out. Pure.

`text` tells the whole story by itself: it is what notifications on a phone, screen readers and plain logs show.
"""

from __future__ import annotations

from typing import Any

from memagent.estimator.advice import advice_for_cause
from memagent.units import format_bytes, format_duration
from memagent_server.alerts.rules import when
from memagent_server.notify.channel import Story

SECTION_LIMIT, HEADER_LIMIT = 3000, 150

_HEADLINES = {
    "firing": "{name} will run out of memory {when}",
    "averted": "{name} is no longer expected to run out of memory",
    "finished": "{name} finished before its memory ran out",
    "oom": "{name} died of out-of-memory at step {step:,}",
    "lost_contact": "{name} fell silent at step {step:,}",
}


def headline(story: Story) -> str:
    """One line: which run, and what happened."""
    return _HEADLINES[story.to_state].format(name=story.run_name, when=when(story.facts), step=story.step)


def details(story: Story) -> list[str]:
    """The facts, a line each."""
    return _of_warning(story) if story.to_state == "firing" else _of_outcome(story)


def advice(story: Story) -> tuple[str, str, str] | None:
    """What the cause means, what to change and the code that does it, for warnings whose cause is known."""
    cause = story.facts.get("cause")
    if story.to_state != "firing" or not cause:
        return None
    found = advice_for_cause(cause)
    return found.summary, found.change, found.code


def plain_text(story: Story) -> str:
    """The whole story in plain text."""
    lines = [headline(story), where(story), *details(story)]
    found = advice(story)
    if found is not None:
        summary, change, code = found
        lines += [
            f"Cause: {story.facts['cause']}. {summary}",
            f"What to change: {change}",
            *(f"    {line}" for line in code.splitlines()),
        ]
    return "\n".join([*lines, story.run_url])


def blocks(story: Story) -> list[dict[str, Any]]:
    """Block Kit: headline, where, facts, cause with code, and a button that opens the run."""
    found: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(headline(story), HEADER_LIMIT)}},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": _cut(escape(where(story)), SECTION_LIMIT)}]},
    ]
    facts = "\n".join(escape(line) for line in details(story))
    if facts:
        found.append(_section(facts))
    suggestion = advice(story)
    if suggestion is not None:
        summary, change, code = suggestion
        text = f"*Cause: {escape(str(story.facts['cause']))}.* {escape(summary)}\n*What to change:* {escape(change)}"
        found.append(_section(text + (f"\n```{escape(code)}```" if code else "")))
    button = {"type": "button", "text": {"type": "plain_text", "text": "Open run"}, "url": story.run_url}
    return [*found, {"type": "actions", "elements": [button]}]


def where(story: Story) -> str:
    """Run, project, rank and device."""
    rank = f"rank {story.rank} of {story.world_size}, " if story.world_size > 1 and story.rank is not None else ""
    device = f"{rank}{story.device_name}" if story.device_name else rank.rstrip(", ")
    parts = [f"run {story.run_id}", f"project {story.project}", device, f"on {story.host}" if story.host else ""]
    return " · ".join(part for part in parts if part)


def escape(text: str) -> str:
    """Slack's three control characters (docs: formatting text for app surfaces)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _of_warning(story: Story) -> list[str]:
    facts = story.facts
    lines = [
        f"Step {story.step:,}: {format_bytes(facts.get('used_bytes'))} of {format_bytes(facts.get('limit_bytes'))} used"
    ]
    growth, since = facts.get("growth_bytes_per_step"), facts.get("growing_since_step")
    if growth:
        lines.append(
            f"Growing by {format_bytes(growth)} a step" + (f" since step {since:,}" if since is not None else "")
        )
    if story.predicted_peak_bytes:
        observed = story.observed_peak_bytes or facts.get("used_bytes") or 0
        ratio = observed / story.predicted_peak_bytes
        lines.append(
            f"Predicted peak {format_bytes(story.predicted_peak_bytes)}, observed so far {format_bytes(observed)} ({ratio:.1f}x)"
        )
    return lines


def _of_outcome(story: Story) -> list[str]:
    lines = []
    if story.rule == "oom_forecast":
        steps, seconds = story.step - story.first_step, story.at - story.opened_at
        lines.append(f"First warning at step {story.first_step:,}, {steps:,} steps ({format_duration(seconds)}) before")
    elif story.to_state == "oom" and not story.facts.get("was_warned"):
        lines.append("There was no warning before")
    used, limit = story.observed_peak_bytes, story.facts.get("limit_bytes")
    if used:
        lines.append(f"Peak {format_bytes(used)} of {format_bytes(limit)}")
    if story.error:
        lines.append(_cut(story.error, 300))
    return lines


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": _cut(text, SECTION_LIMIT)}}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
