"""Plain text of a message: what all channels show, each in its own format. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from memagent.estimator.advice.by_cause import CauseAdvice, advice_for_cause
from memagent.units import format_bytes, format_duration
from memagent_server.alerts.event_rules import COLUMN, MILESTONES, SCRIPT
from memagent_server.alerts.rules import RULES
from memagent_server.alerts.summaries import format_chance, format_eta
from memagent_server.notify.channel import AlertMessage

LATE_S = 120.0
"""A message that waited longer says so: its ETA is outdated."""
MAX_FOLDED_LINES = 25
MAX_FOLDED_SUSPECTS = 5
"""Runs of one project that fire together mostly have one line in common."""
MAX_SCRIPT_TEXT = 1_500
"""Characters of a script's text in a message: half of what fits into a section of Slack's."""
RESOLVED_STATES = ("averted", "finished")
_REPEAT = "This may repeat an earlier message, whose delivery was interrupted"
_RUNBOOK_STATES = ("firing", "oom", "lost_contact")

_HEADLINES = {
    "oom_forecast": {
        "firing": "{name} {chance} run out of memory {eta}",
        "averted": "{name} is no longer expected to run out of memory",
        "finished": "{name} finished before its memory ran out",
    },
    "": {
        "firing": "{name} {summary}",
        "averted": "{name}: {rule} is over",
        "finished": "{name} finished; {rule} is over",
        "oom": "{name} ran out of memory in step {failed_step:,}",
        "lost_contact": "{name} fell silent at step {step:,}",
        "digest": "{digest}",
        "test": "Test: memagent can reach you here. Nothing is wrong",
    },
}


_FOLDED_STATES = {"firing": "new alerts", "oom": "out of memory", "lost_contact": "fell silent"}


def headline(message: AlertMessage) -> str:
    """Return one line: which run, and what happened."""
    if message.folded:
        rule = message.rule.replace("_", " ")
        outcome = _FOLDED_STATES.get(message.to_state, message.to_state)
        return f"{len(message.folded)} runs of {message.project}: {rule}, {outcome}"
    if message.is_follow_up and message.suspect is not None:
        return f"{message.run_name}: suspect {message.suspect.location}"
    if message.rule in MILESTONES and message.rule in RULES:
        return f"{message.run_name} {RULES[message.rule].summarize(message.facts)}"
    templates = {**_HEADLINES[""], **_HEADLINES.get(message.rule, {})}
    template = templates.get(message.to_state, "{name}: {rule} is {state}")
    return template.format(
        name=message.run_name,
        eta=format_eta(message.facts),
        chance=format_chance(message.facts),
        step=message.step,
        failed_step=message.step + 1,
        rule=message.rule.replace("_", " "),
        state=message.to_state,
        summary=_summary(message) if message.to_state == "firing" else "",
        digest=message.summary,
    )


def origin(message: AlertMessage) -> str:
    """Return run, project, rank, device and host."""
    if message.folded:
        return f"project {message.project}"
    if message.to_state == "digest":
        return f"{message.project} · {message.reason}"
    device = ", ".join(part for part in (_ranks(message), message.device_name) if part)
    parts = [
        f"run {message.run_id}",
        f"project {message.project}",
        device,
        f"on {message.host}" if message.host else "",
    ]
    return " · ".join(part for part in parts if part)


def details(message: AlertMessage) -> list[str]:
    """Return the facts, a line each."""
    if message.folded:
        more = len(message.folded) - MAX_FOLDED_LINES
        lines = [*message.folded[:MAX_FOLDED_LINES], *([f"and {more} more"] if more > 0 else [])]
        lines += message.folded_suspects
        return [*lines, _REPEAT] if message.is_repeat else lines
    if message.to_state == "digest":
        return [str(line) for line in message.facts["lines"]]
    if message.to_state == "test":
        return ["`memagent notify test` or a test button requested this message."]
    is_warning = message.to_state == "firing"
    lines = _warning_details(message) if is_warning else _outcome_details(message)
    if is_warning:
        lines += message.handling
    if message.is_repeat:
        lines.append(_REPEAT)
    if message.delayed_s > LATE_S:
        waited = format_duration(message.delayed_s)
        lines.append(f"This message waited {waited} to be sent: the run may be further along")
    return lines


def common_suspects(messages: Sequence[AlertMessage]) -> dict[tuple[str, str], int]:
    """Return the lines and fixes that several warnings name most often, with their numbers."""
    warnings = (message for message in messages if message.to_state == "firing")
    suspects = (message.suspect for message in warnings if message.suspect is not None)
    counts = Counter((suspect.location, suspect.fix) for suspect in suspects)
    return dict(counts.most_common(MAX_FOLDED_SUSPECTS))


def folded_suspect_lines(messages: Sequence[AlertMessage]) -> tuple[str, ...]:
    """Return a line for each suspect of several warnings, the commonest first."""
    return tuple(
        f"Suspect in {number} of {len(messages)} runs: {location}"
        + (f". Fix: {fix}" if fix else "")
        for (location, fix), number in common_suspects(messages).items()
    )


def cause_advice(message: AlertMessage) -> CauseAdvice | None:
    """Return what a warning's cause means, what to change and the code that does it."""
    cause = message.facts.get("cause")
    if message.to_state != "firing" or not cause or message.folded:
        return None
    return advice_for_cause(cause, message.advice, message.suspect, on_host=message.on_host)


def saving_line(message: AlertMessage) -> str | None:
    """Return the estimator's first advice for this run."""
    saving = message.saving
    if message.to_state != "firing" or saving is None or message.folded:
        return None
    cost = f" ({saving.cost})" if saving.cost else ""
    return f"Would save {format_bytes(saving.saving_bytes)}: {saving.change}{cost}"


def plain_text(message: AlertMessage) -> str:
    """Return the whole message in plain text."""
    lines = [headline(message), origin(message), *details(message)]
    advice, saving = cause_advice(message), saving_line(message)
    if advice is not None:
        lines += [
            f"Cause: {message.facts['cause']}. {advice.summary}",
            f"What to change: {advice.change}",
            *(f"    {line}" for line in advice.code.splitlines()),
        ]
    lines += [saving] if saving else []
    lines += [f"Runbook: {message.runbook_url}"] if needs_runbook(message) else []
    return "\n".join([*lines, message.run_url])


def needs_runbook(message: AlertMessage) -> bool:
    """Return True if there is something left to do about the alert."""
    return bool(message.runbook_url) and message.to_state in _RUNBOOK_STATES


def truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _summary(message: AlertMessage) -> str:
    """Return the rule's sentence for this transition: the alert's own may describe a later one."""
    if message.rule in RULES:
        return RULES[message.rule].summarize(message.facts)
    return message.summary or f"has an alert: {message.rule}"


def _ranks(message: AlertMessage) -> str:
    if len(message.ranks) > 1:
        more = ", …" if len(message.ranks) > 8 else ""
        named = ", ".join(map(str, message.ranks[:8])) + more
        return f"{len(message.ranks)} of {message.world_size} ranks ({named})"
    if message.world_size > 1 and message.rank is not None:
        return f"rank {message.rank} of {message.world_size}"
    return ""


def _warning_details(message: AlertMessage) -> list[str]:
    facts = message.facts
    if message.rule in (SCRIPT.name, COLUMN.name):
        text = facts.get("text") or ""
        lines = truncate(text, MAX_SCRIPT_TEXT).splitlines()[:MAX_FOLDED_LINES]
        return lines + _checkpoint_lines(message)
    lines = []
    if facts.get("used_bytes") is not None:
        step = facts.get("used_step", facts.get("step", message.step))
        used, limit = format_bytes(facts["used_bytes"]), format_bytes(facts.get("limit_bytes"))
        lines.append(f"Step {step:,}: {used} of {limit} used")
    growth, since = facts.get("growth_bytes_per_step"), facts.get("growing_since_step")
    if growth:
        start = f" since step {since:,}, now" if since is not None else ""
        lines.append(f"Growing{start} by {format_bytes(growth)} a step")
    if facts.get("predecessor"):
        lines.append(facts["predecessor"])
    lines += _suspect_lines(message)
    if message.predicted_peak_bytes:
        observed = message.observed_peak_bytes or facts.get("used_bytes") or 0
        ratio = observed / message.predicted_peak_bytes
        predicted = format_bytes(message.predicted_peak_bytes)
        lines.append(
            f"Predicted peak {predicted}, observed so far {format_bytes(observed)} ({ratio:.1f}x)"
        )
    return lines + _checkpoint_lines(message)


def _suspect_lines(message: AlertMessage) -> list[str]:
    """Return the line of code to blame, with its kind and confidence, and how to fix it."""
    suspect = message.suspect
    if suspect is None:
        return []
    growth = suspect.bytes_per_step
    keeps = f" keeps {format_bytes(growth)} more each step" if growth else ""
    holder = f", held by {suspect.holder}" if suspect.holder else ""
    kind = suspect.kind.replace("_", " ")
    confidence = f", {suspect.confidence:.0%} sure" if suspect.confidence else ""
    lines = [f"Suspect: {suspect.location}{keeps}{holder} ({kind}{confidence})"]
    return [*lines, f"Fix: {suspect.fix}"] if suspect.fix else lines


def _checkpoint_lines(message: AlertMessage) -> list[str]:
    if message.checkpoint_step is None:
        return []
    ago = max(0, message.step - message.checkpoint_step)
    return [f"Last checkpoint at step {message.checkpoint_step:,}, {ago:,} steps before"]


def _outcome_details(message: AlertMessage) -> list[str]:
    lines = []
    if message.rule == "oom_forecast":
        last_step = message.step + 1 if message.to_state == "oom" else message.step
        steps = last_step - message.first_step
        ago = format_duration(message.at - message.opened_at)
        lines.append(
            f"First warning at step {message.first_step:,}, {steps:,} steps ({ago}) before"
        )
    elif message.to_state == "oom" and not message.facts.get("was_warned"):
        lines.append("There was no warning before")
    if message.rule in MILESTONES:
        return lines
    used, limit = message.observed_peak_bytes, message.facts.get("limit_bytes")
    if used:
        lines.append(f"Peak {format_bytes(used)} of {format_bytes(limit)}")
    lines += message.failure
    if message.error:
        lines.append(truncate(message.error, 300))
    if message.to_state in ("oom", "lost_contact"):
        lines += _checkpoint_lines(message)
    return [*lines, *message.autopsy]
