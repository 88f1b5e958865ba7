"""Summaries of alerts: one function per rule, named like it, from an alert's data to a sentence.

Each sentence continues the run's name: `gpt will run out of memory in about 420 steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from memagent.units import DAY_S, format_bytes, format_duration
from memagent_server.schemas.runs import Failure

Data = Mapping[str, Any]
_WEEK_S = 6 * DAY_S


def format_eta(data: Data) -> str:
    """Return `in about 420 steps (25 min, between 18 min and 34 min)` for a forecast.

    Where a bound reads like the time itself: `in about 420 steps (2 min to 3 min)`.
    """
    if data.get("cause") == "eval":
        return "when it next evaluates or saves a checkpoint"
    if data.get("eta_step") is None:
        return "when the largest inputs come"
    steps_left = max(0.0, data["eta_step"] - data["step"])
    count = max(1, round(steps_left))
    text = f"in about {count:,} steps" if count > 1 else "in the next step"
    seconds = data.get("eta_s")
    if seconds is None or round(seconds) < 1:
        return text
    low, high = data.get("eta_low"), data.get("eta_high")
    if not steps_left or low is None or high is None:
        return f"{text} ({format_duration(seconds)})"
    step_s = seconds / steps_left
    early, late = (format_duration((bound - data["step"]) * step_s) for bound in (low, high))
    return f"{text} ({_format_time_between(format_duration(seconds), early, late)})"


def _format_time_between(time: str, early: str, late: str) -> str:
    if early == late:
        return time
    return f"{early} to {late}" if time in (early, late) else f"{time}, between {early} and {late}"


def _format_usage(data: Data) -> str:
    return f"{format_bytes(data.get('used_bytes'))} of {format_bytes(data.get('limit_bytes'))}"


def oom_forecast(data: Data) -> str:
    return f"{format_chance(data)} run out of memory {format_eta(data)}: {_format_usage(data)} used"


def format_chance(data: Data) -> str:
    """Return `may` for a notice and `will` for a warning."""
    return "may" if data.get("level") == "notice" else "will"


def first_step(data: Data) -> str:
    predicted = data.get("predicted_bytes")
    prediction = f", predicted {format_bytes(predicted)}" if predicted else ""
    return f"has taken its first step: {_format_usage(data)} used{prediction}"


def finished(data: Data) -> str:
    run_s = data.get("run_s")
    time = f" in {format_duration(run_s)}" if run_s else ""
    return f"completed after {data['step']:,} steps{time}: peak {_format_usage(data)}"


def leak(data: Data) -> str:
    growth = format_bytes(data["growth_bytes_per_step"])
    return (
        f"has grown by {format_bytes(data['grown_bytes'])} since step "
        f"{data['growing_since_step']:,}, now by {growth} a step: {_format_usage(data)} used"
    )


def high_water(data: Data) -> str:
    return f"peaks near its limit: {_format_usage(data)}"


def fragmentation(data: Data) -> str:
    split, reserved = format_bytes(data["split_bytes"]), format_bytes(data["reserved_bytes"])
    return (
        f"{split} of {reserved} reserved are free pieces of split blocks, "
        "which the allocator can't give back"
    )


def prediction_mismatch(data: Data) -> str:
    peak, predicted = data["used_bytes"], data["predicted_bytes"]
    return (
        f"peaked at {format_bytes(peak)}, {peak / predicted:.2g} times the predicted "
        f"{format_bytes(predicted)}"
    )


def rank_imbalance(data: Data) -> str:
    peak, others = format_bytes(data["used_bytes"]), format_bytes(data["others_bytes"])
    return f"rank {data['rank']} peaks at {peak}, the other ranks at {others}"


def host_memory(data: Data) -> str:
    source = f" ({data['limit_source']})" if data.get("limit_source") else ""
    return f"host memory is nearly full: {_format_usage(data)}{source} used"


def stalled(data: Data) -> str:
    return (
        f"has taken no step for {format_duration(data['silent_s'])} since step {data['step']:,}, "
        "though its process is alive; a step used to take "
        f"{format_duration(data['step_s'])}"
    )


def script(data: Data) -> str:
    times = f" ({data['count']:,} times)" if data["count"] > 1 else ""
    return f"reports: {data['title']}{times}"


def column(data: Data) -> str:
    name, test = data["column"], data["test"]
    value, reference = (_format_value(name, data[key]) for key in ("value", "reference"))
    lasting = f" for {format_duration(data['lasts_s'])}" if data.get("lasts_s") else ""
    if test == "not_finite":
        return f"{name} is {value}"
    if test == "spike":
        return (
            f"{name} jumped to {value}, {data['deviations']:.3g} deviations above its median of "
            f"{reference}"
        )
    if test in ("above", "below"):
        return f"{name} has been {test} {reference}{lasting}: {value}"
    extreme = test.removeprefix("no_new_")
    best = f"{reference} at step {data['reference_step']:,}"
    return f"{name} has had no new {extreme}{lasting}: the last is {best}"


def _format_value(name: str, value: Any) -> str:
    if isinstance(value, int | float) and name.endswith("_bytes"):
        return format_bytes(int(value))
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def oom(data: Data) -> str:
    text = f"ran out of memory in step {data['step'] + 1:,}"
    return text if data.get("was_warned") else f"{text}, without a warning before"


def lost_contact(data: Data) -> str:
    text = f"has been silent since step {data['step']:,}"
    return f"{text}: {data['error']}" if data.get("error") else text


def closing_summary(rule: str, summary: str, state: str, first_step: int, step: int) -> str:
    """Return the summary of a closed alert: how it ended, and what it had warned of.

    `step` is the last completed one: a run that ran out of memory did so in the step after.
    """
    failed_step = step + 1
    if rule == "oom_forecast":
        first = f"warned at step {first_step:,}"  # an averted alert may have warned earlier
        lead = f"{max(0, failed_step - first_step):,} steps after the warning"
        return {
            "oom": f"ran out of memory in step {failed_step:,}, {lead} at step {first_step:,}",
            "lost_contact": f"fell silent after step {step:,}; {first}",
            "finished": f"ended at step {step:,} before it ran out of memory; {first}",
            "averted": f"is no longer expected to run out of memory at step {step:,}; {first}",
            "ok": f"was expected at step {first_step:,} to run out of memory; not confirmed",
        }[state]
    outcome = {
        "averted": f"is over since step {step:,}",
        "ok": "was not confirmed",
        "finished": f"was open until the run ended at step {step:,}",
        "oom": f"was open when the run ran out of memory in step {failed_step:,}",
        "lost_contact": f"was open when the run fell silent at step {step:,}",
    }[state]
    return f"{outcome}; before: {summary}"


def seen_in(failure: Failure, now: float) -> str:
    """Return `Seen in 7 runs of 3 people since Tuesday`; with a date if that's a week ago."""
    if failure.runs == 1:
        return "First occurrence"
    people = f" of {failure.users} people" if failure.users > 1 else ""
    return f"Seen in {failure.runs:,} runs{people} since {day_of(failure.first_seen_at, now)}"


def regression(failure: Failure, now: float) -> str | None:
    """Return when and by whom a failure that has come back was resolved, None for others."""
    if failure.state != "regressed" or failure.resolved_at is None:
        return None
    by = f" by {failure.resolved_by}" if failure.resolved_by else ""
    day = day_of(failure.resolved_at, now)
    return f"resolved{by} on {day}, and back in a run that began later"


def day_of(at: str, now: float) -> str:
    """Return the weekday of an ISO 8601 time in UTC, the date if it's longer ago than six days."""
    moment = datetime.fromisoformat(at.replace("Z", "+00:00")).astimezone(timezone.utc)
    is_recent = 0 <= now - moment.timestamp() < _WEEK_S
    return f"{moment:%A}" if is_recent else f"{moment.date()}"
