"""What alerts there are, and the sentence each one is summed up in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memagent.units import format_bytes, format_duration

Facts = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """`summarize` gets the facts of a forecast (a `Risk` as a dict) and says what is the matter in one sentence."""

    name: str
    summarize: Callable[[Facts], str]


def when(facts: Facts) -> str:
    """`in about 420 steps (25 min, between 18 min and 34 min)`."""
    if facts.get("eta_step") is None:
        return "when the largest inputs come"
    steps_left = max(0.0, facts["eta_step"] - facts["step"])
    count = max(1, round(steps_left))
    text = f"in about {count:,} steps" if count > 1 else "in the next step"
    seconds = facts.get("eta_s")
    if seconds is None:
        return text
    low, high = facts.get("eta_low"), facts.get("eta_high")
    if not steps_left or low is None or high is None:
        return f"{text} ({format_duration(seconds)})"
    a_step = seconds / steps_left
    early, late = (format_duration((bound - facts["step"]) * a_step) for bound in (low, high))
    between = f", between {early} and {late}" if early != late else ""
    return f"{text} ({format_duration(seconds)}{between})"


def _will_run_out(facts: Facts) -> str:
    return f"will run out of memory {when(facts)}: {_fullness(facts)} used"


def _ran_out(facts: Facts) -> str:
    text = f"ran out of memory at step {facts['step']:,}"
    return text if facts.get("was_warned") else f"{text}, without a warning before"


def _fell_silent(facts: Facts) -> str:
    return f"has not been heard of since step {facts['step']:,}"


def _fullness(facts: Facts) -> str:
    return f"{format_bytes(facts.get('used_bytes'))} of {format_bytes(facts.get('limit_bytes'))}"


RULES = {
    rule.name: rule
    for rule in (
        Rule("oom_forecast", _will_run_out),
        Rule("oom", _ran_out),
        Rule("lost_contact", _fell_silent),
    )
}
