"""The words of a message: a `AlertMessage` in, lines of plain text out. Pure; what all channels say, each in its own clothes."""

from __future__ import annotations

from memagent.estimator.advice.by_cause import CauseAdvice, advice_for_cause
from memagent.units import format_bytes, format_duration
from memagent_server.alerts.rules import RULES
from memagent_server.alerts.summaries import format_eta
from memagent_server.notify.channel import AlertMessage

LATE_S = 120.0
"""A message that has waited longer says so: its ETA is no longer to be believed."""

_HEADLINES = {
    "oom_forecast": {
        "firing": "{name} will run out of memory {when}",
        "averted": "{name} is no longer expected to run out of memory",
        "finished": "{name} finished before its memory ran out",
    },
    "": {
        "firing": "{name} {summary}",
        "averted": "{name}: {rule} is over",
        "finished": "{name} finished; {rule} is over",
        "oom": "{name} died of out-of-memory at step {step:,}",
        "lost_contact": "{name} fell silent at step {step:,}",
        "test": "Test: memagent reaches you here. Nothing is wrong",
    },
}
_TO_BE_LOOKED_AT = ("firing", "oom", "lost_contact")
_STATE_WORDS = {
    "averted": "averted",
    "finished": "over",
    "oom": "died",
    "lost_contact": "fell silent",
    "test": "test",
}


def headline(story: AlertMessage) -> str:
    """One line: which run, and what happened."""
    known = {**_HEADLINES[""], **_HEADLINES.get(story.rule, {})}
    template = known.get(story.to_state, "{name}: {rule} is {state}")
    return template.format(
        name=story.run_name,
        when=format_eta(story.facts),
        step=story.step,
        rule=story.rule.replace("_", " "),
        state=story.to_state,
        summary=_summary(story) if story.to_state == "firing" else "",
    )


def status(story: AlertMessage) -> str:
    """One word or two, for a label: `critical`, `died`, `averted` ..."""
    return _STATE_WORDS.get(story.to_state, story.severity)


def where(story: AlertMessage) -> str:
    """Run, project, rank and device."""
    device = ", ".join(part for part in (_ranks(story), story.device_name) if part)
    parts = [
        f"run {story.run_id}",
        f"project {story.project}",
        device,
        f"on {story.host}" if story.host else "",
    ]
    return " · ".join(part for part in parts if part)


def details(story: AlertMessage) -> list[str]:
    """The facts, a line each."""
    if story.to_state == "test":
        return ["This message was asked for by `memagent notify test` or a test button."]
    lines = _of_warning(story) if story.to_state == "firing" else _of_outcome(story)
    if story.to_state == "firing" and story.acked_by:
        lines.append(f"Acknowledged by {story.acked_by}")
    if story.delayed_s > LATE_S:
        lines.append(
            f"This message waited {format_duration(story.delayed_s)} to be sent: the run may be further by now"
        )
    return lines


def advice(story: AlertMessage) -> CauseAdvice | None:
    """What the cause means, what to change and the code that does it, for warnings whose cause is known."""
    cause = story.facts.get("cause")
    return advice_for_cause(cause, story.advice) if story.to_state == "firing" and cause else None


def saving(story: AlertMessage) -> str | None:
    """The estimator's first advice for this run."""
    if story.to_state != "firing" or story.saving is None:
        return None
    cost = f" ({story.saving.cost})" if story.saving.cost else ""
    return f"Would save {format_bytes(story.saving.saving_bytes)}: {story.saving.change}{cost}"


def plain_text(story: AlertMessage) -> str:
    """The whole story in plain text."""
    lines = [headline(story), where(story), *details(story)]
    found, saves = advice(story), saving(story)
    if found is not None:
        lines += [
            f"Cause: {story.facts['cause']}. {found.summary}",
            f"What to change: {found.change}",
            *(f"    {line}" for line in found.code.splitlines()),
        ]
    lines += [saves] if saves else []
    lines += [f"Runbook: {story.runbook_url}"] if needs_runbook(story) else []
    return "\n".join([*lines, story.run_url])


def needs_runbook(story: AlertMessage) -> bool:
    """Whether there is anything left to do about it."""
    return bool(story.runbook_url) and story.to_state in _TO_BE_LOOKED_AT


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _summary(story: AlertMessage) -> str:
    """What the rule says of this transition's facts; the alert's own summary may tell of a later one by now."""
    if story.rule in RULES:
        return RULES[story.rule].summarize(story.facts)
    return story.summary or f"has an alert: {story.rule}"


def _ranks(story: AlertMessage) -> str:
    if len(story.ranks) > 1:
        named = ", ".join(map(str, story.ranks[:8])) + (", …" if len(story.ranks) > 8 else "")
        return f"{len(story.ranks)} of {story.world_size} ranks ({named})"
    return (
        f"rank {story.rank} of {story.world_size}"
        if story.world_size > 1 and story.rank is not None
        else ""
    )


def _of_warning(story: AlertMessage) -> list[str]:
    facts = story.facts
    lines = []
    if facts.get("used_bytes") is not None:
        step = facts.get("used_step", facts.get("step", story.step))
        lines.append(
            f"Step {step:,}: {format_bytes(facts['used_bytes'])} of {format_bytes(facts.get('limit_bytes'))} used"
        )
    growth, since = facts.get("growth_bytes_per_step"), facts.get("growing_since_step")
    if growth:
        began = f" since step {since:,}" if since is not None else ""
        lines.append(f"Growing by {format_bytes(growth)} a step{began}")
    if story.suspect is not None:
        lines.append(_suspect(story))
    if story.predicted_peak_bytes:
        observed = story.observed_peak_bytes or facts.get("used_bytes") or 0
        ratio = observed / story.predicted_peak_bytes
        predicted = format_bytes(story.predicted_peak_bytes)
        lines.append(
            f"Predicted peak {predicted}, observed so far {format_bytes(observed)} ({ratio:.1f}x)"
        )
    lines += _checkpoint(story)
    return lines


def _suspect(story: AlertMessage) -> str:
    assert story.suspect is not None
    size, holder = story.suspect.bytes_per_step, story.suspect.holder
    grows = f" keeps {format_bytes(size)} more each step" if size else ""
    return f"Suspect: {story.suspect.location}{grows}" + (f", held by {holder}" if holder else "")


def _checkpoint(story: AlertMessage) -> list[str]:
    if story.checkpoint_step is None:
        return []
    ago = max(0, story.step - story.checkpoint_step)
    return [f"Last checkpoint at step {story.checkpoint_step:,}, {ago:,} steps before"]


def _of_outcome(story: AlertMessage) -> list[str]:
    lines = []
    if story.rule == "oom_forecast":
        steps, seconds = story.step - story.first_step, story.at - story.opened_at
        lines.append(
            f"First warning at step {story.first_step:,}, {steps:,} steps ({format_duration(seconds)}) before"
        )
    elif story.to_state == "oom" and not story.facts.get("was_warned"):
        lines.append("There was no warning before")
    used, limit = story.observed_peak_bytes, story.facts.get("limit_bytes")
    if used:
        lines.append(f"Peak {format_bytes(used)} of {format_bytes(limit)}")
    if story.error:
        lines.append(cut(story.error, 300))
    if story.to_state in ("oom", "lost_contact"):
        lines += _checkpoint(story)
    return [*lines, *story.autopsy]
