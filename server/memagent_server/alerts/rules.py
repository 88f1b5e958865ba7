"""What alerts there are: for each, a pure function of facts that decides, the sentence it is summed up in, and its thresholds.

Adding a rule is copying its neighbour and an entry in RULES, with a heading in docs/alerts.md.
`is_open` is whether the alert stands already: what has fired is let go a little below where it fired, so that nothing flutters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from memagent.forecast.types import LEAK_CAUSES, PAGING_LEVELS
from memagent.units import format_bytes, format_duration
from memagent.wire.messages import KILLING_LIMITS
from memagent_server.alerts.rule_input import CALM, Finding, RuleInput
from memagent_server.alerts.state import FORECAST, Patience

Thresholds = Mapping[str, float]
Data = dict[str, Any]
Looks = Literal["sample", "turn", "run", "end"]
"""How often a rule is asked: with every sample whose forecast pages and with all while its alert stands; with each turn that has new ones;
of a run with or without new samples; or at its end."""
TELLS = ("warning", "critical", "never")

SLACK = 0.97
"""An alert that stands is let go below this share of its threshold."""
PER_TURN = Patience(confirm=3, calm=3, hold_s=60.0)
"""At other limits (RLIMIT_AS, RLIMIT_DATA) an allocation fails, and the process says so itself."""
SETTLED_STEPS = 10
"""A launch's first steps (lazy allocation, autotuning) say little about the rest."""


@dataclass(frozen=True)
class Threshold:
    """A number that a project may change, from `least` to `most`. `unit` is ratio, s or bytes."""

    name: str
    default: float
    least: float
    most: float
    unit: str
    about: str


@dataclass(frozen=True)
class Rule:
    """`tells` is the least severity that people are told of by default; findings below it are notes, listed and no more."""

    name: str
    about: str
    decide: Callable[[RuleInput, Thresholds, bool], Finding]
    summarize: Callable[[Data], str]
    looks: Looks
    tells: str = "never"
    thresholds: tuple[Threshold, ...] = ()
    patience: Patience = PER_TURN


def when(facts: Mapping[str, Any]) -> str:
    """`in about 420 steps (25 min, between 18 min and 34 min)`."""
    if facts.get("cause") == "eval":
        return "when it next evaluates or saves a checkpoint"
    if facts.get("eta_step") is None:
        return "when the largest inputs come"
    steps_left = max(0.0, facts["eta_step"] - facts["step"])
    count = max(1, round(steps_left))
    text = f"in about {count:,} steps" if count > 1 else "in the next step"
    seconds = facts.get("eta_s")
    if seconds is None or round(seconds) < 1:
        return text
    low, high = facts.get("eta_low"), facts.get("eta_high")
    if not steps_left or low is None or high is None:
        return f"{text} ({format_duration(seconds)})"
    a_step = seconds / steps_left
    early, late = (format_duration((bound - facts["step"]) * a_step) for bound in (low, high))
    between = f", between {early} and {late}" if early != late else ""
    return f"{text} ({format_duration(seconds)}{between})"


# -- oom_forecast: it will run out -----------------------------------------------------------------------------------------


def _decide_oom_forecast(facts: RuleInput, limits: Thresholds, _is_open: bool) -> Finding:
    forecast = facts.forecast
    if forecast is None or forecast.level not in PAGING_LEVELS:
        return CALM
    is_next = forecast.eta_step is not None and forecast.eta_step - forecast.step <= 1
    if forecast.eta_s is None or is_next:
        level: str = forecast.level
    else:
        level = "critical" if forecast.eta_s <= limits["critical_s"] else "warning"
    return Finding(level, forecast.cause, asdict(forecast) | {"level": level})


def _will_run_out(data: Data) -> str:
    return f"will run out of memory {when(data)}: {_fullness(data)} used"


# -- leak: it grows, but not to death --------------------------------------------------------------------------------------


def _decide_leak(facts: RuleInput, limits: Thresholds, is_open: bool) -> Finding:
    forecast = facts.forecast
    if (
        forecast is None
        or forecast.level in PAGING_LEVELS
        or not forecast.growth_bytes_per_step
        or not forecast.limit_bytes
    ):
        return CALM
    if forecast.growing_since_step is None or forecast.cause not in (None, *LEAK_CAUSES):
        return CALM
    grown = forecast.growth_bytes_per_step * (forecast.step - forecast.growing_since_step)
    if not _over(grown / forecast.limit_bytes, limits["grown_ratio"], is_open):
        return CALM
    return Finding(
        "warning", forecast.cause or "leak", asdict(forecast) | {"grown_bytes": int(grown)}
    )


def _leaks(data: Data) -> str:
    return (
        f"grows by {format_bytes(data['growth_bytes_per_step'])} a step since step {data['growing_since_step']:,}, "
        f"{format_bytes(data['grown_bytes'])} so far: {_fullness(data)} used"
    )


# -- high_water: close to the limit -----------------------------------------------------------------------------------------


def _decide_high_water(facts: RuleInput, limits: Thresholds, is_open: bool) -> Finding:
    if facts.kind == "host" or not facts.peak_bytes or not facts.limit_bytes:
        return CALM
    ratio = facts.peak_bytes / facts.limit_bytes
    if not _over(ratio, limits["used_ratio"], is_open):
        return CALM
    return Finding(
        "warning", None, {"used_bytes": facts.peak_bytes, "limit_bytes": facts.limit_bytes}
    )


def _is_nearly_full(data: Data) -> str:
    return f"peaks near its limit: {_fullness(data)}"


# -- fragmentation: free pieces that nobody can use --------------------------------------------------------------------------


def _decide_fragmentation(facts: RuleInput, limits: Thresholds, is_open: bool) -> Finding:
    split, limit = facts.inactive_split_bytes, facts.limit_bytes
    if not split or not limit or not _over(split / limit, limits["split_ratio"], is_open):
        return CALM
    data = {
        "split_bytes": split,
        "reserved_bytes": facts.reserved_bytes,
        "used_bytes": facts.used_bytes,
    }
    return Finding("warning", "fragmentation", data | {"limit_bytes": limit})


def _is_fragmented(data: Data) -> str:
    return (
        f"{format_bytes(data['split_bytes'])} of {format_bytes(data['reserved_bytes'])} reserved are free pieces of split blocks, "
        "which cannot be given back"
    )


# -- prediction_mismatch: more than the estimator said ------------------------------------------------------------------------


def _decide_prediction_mismatch(facts: RuleInput, limits: Thresholds, is_open: bool) -> Finding:
    peak, predicted = facts.launch_peak_bytes, facts.predicted_peak_bytes
    if not peak or not predicted or facts.step < SETTLED_STEPS:
        return CALM
    is_trifle = peak - predicted < limits["over_bytes"]
    if is_trifle or not _over(peak / predicted, limits["over_ratio"], is_open):
        return CALM
    return Finding(
        "warning",
        None,
        {"used_bytes": peak, "predicted_bytes": predicted, "limit_bytes": facts.limit_bytes},
    )


def _was_mispredicted(data: Data) -> str:
    ratio = data["used_bytes"] / data["predicted_bytes"]
    return f"peaked at {format_bytes(data['used_bytes'])}, {ratio:.2g} times the predicted {format_bytes(data['predicted_bytes'])}"


# -- rank_imbalance: one rank needs far more than the others ------------------------------------------------------------------


def _decide_rank_imbalance(facts: RuleInput, limits: Thresholds, is_open: bool) -> Finding:
    if len(facts.peak_by_rank) < 2 or facts.step < SETTLED_STEPS:
        return CALM
    fullest = max(facts.peak_by_rank, key=lambda rank: facts.peak_by_rank[rank])
    others = median(peak for rank, peak in facts.peak_by_rank.items() if rank != fullest)
    most = facts.peak_by_rank[fullest]
    if not others or not _over(most / others, limits["peak_ratio"], is_open):
        return CALM
    data = {
        "rank": fullest,
        "used_bytes": most,
        "others_bytes": int(others),
        "limit_bytes": facts.limit_bytes,
    }
    return Finding("warning", None, data)


def _is_lopsided(data: Data) -> str:
    return f"rank {data['rank']} peaks at {format_bytes(data['used_bytes'])}, the other ranks at {format_bytes(data['others_bytes'])}"


# -- host_memory: the kernel is about to kill ---------------------------------------------------------------------------------


def _decide_host_memory(facts: RuleInput, limits: Thresholds, is_open: bool) -> Finding:
    if facts.kind != "host" or not facts.used_bytes or not facts.limit_bytes:
        return CALM
    if not is_open and facts.forecast is not None and facts.forecast.level in PAGING_LEVELS:
        return CALM  # people know already that it will run out
    ratio = facts.used_bytes / facts.limit_bytes
    data = {
        "used_bytes": facts.used_bytes,
        "limit_bytes": facts.limit_bytes,
        "limit_source": facts.limit_source,
    }
    if ratio >= limits["critical_ratio"] and facts.limit_source in KILLING_LIMITS:
        return Finding("critical", "host_memory", data)
    return (
        Finding("warning", "host_memory", data)
        if _over(ratio, limits["used_ratio"], is_open)
        else CALM
    )


def _host_is_full(data: Data) -> str:
    source = f" ({data['limit_source']})" if data.get("limit_source") else ""
    return f"host memory is nearly full: {_fullness(data)}{source} used"


# -- stalled: alive, but no step ----------------------------------------------------------------------------------------------


def _decide_stalled(facts: RuleInput, limits: Thresholds, _is_open: bool) -> Finding:
    if facts.silent_s is None or facts.step_s is None:
        return CALM
    if facts.silent_s < max(limits["silent_s"], limits["silent_steps"] * facts.step_s):
        return CALM
    return Finding(
        "warning", None, {"silent_s": facts.silent_s, "step_s": facts.step_s, "step": facts.step}
    )


def _stands_still(data: Data) -> str:
    return (
        f"has taken no step for {format_duration(data['silent_s'])} since step {data['step']:,}, though its process is alive; "
        f"a step used to take {format_duration(data['step_s'])}"
    )


# -- oom and lost_contact: it happened ----------------------------------------------------------------------------------------


def _decide_oom(facts: RuleInput, _limits: Thresholds, _is_open: bool) -> Finding:
    return Finding("critical", None, _of_end(facts)) if facts.status == "oom" else CALM


def _ran_out(data: Data) -> str:
    text = f"ran out of memory at step {data['step']:,}"
    return text if data.get("was_warned") else f"{text}, without a warning before"


def _decide_lost_contact(facts: RuleInput, _limits: Thresholds, _is_open: bool) -> Finding:
    return Finding("critical", None, _of_end(facts)) if facts.status == "lost_contact" else CALM


def _fell_silent(data: Data) -> str:
    text = f"has not been heard of since step {data['step']:,}"
    return f"{text}: {data['error']}" if data.get("error") else text


def _of_end(facts: RuleInput) -> Data:
    return {
        "step": facts.step, "level": "critical", "was_warned": facts.was_warned, "error": facts.error,
        "used_bytes": facts.launch_peak_bytes, "limit_bytes": facts.limit_bytes,
    }  # fmt: skip


def _over(value: float, threshold: float, is_open: bool) -> bool:
    return value >= threshold * (SLACK if is_open else 1.0)


def _fullness(data: Data) -> str:
    return f"{format_bytes(data.get('used_bytes'))} of {format_bytes(data.get('limit_bytes'))}"


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "oom_forecast", "The forecaster expects the run to reach its limit.", _decide_oom_forecast, _will_run_out,
            looks="sample", tells="warning", patience=FORECAST,
            thresholds=(
                Threshold("critical_s", 120, 1, 86_400, "s", "critical when less than this is left, else a warning"),
            ),
        ),
        Rule(
            "oom", "A run died of out-of-memory, and no warning stood.", _decide_oom, _ran_out, looks="end", tells="warning",
        ),
        Rule(
            "lost_contact", "A running run fell silent: killed, or its machine or network is away.", _decide_lost_contact, _fell_silent,
            looks="end", tells="warning",
        ),
        Rule(
            "host_memory", "The host's memory is nearly full; at its limit the kernel kills without a word.", _decide_host_memory,
            _host_is_full, looks="turn", tells="critical",
            thresholds=(
                Threshold("used_ratio", 0.9, 0.1, 1, "ratio", "a warning from this share of the limit"),
                Threshold("critical_ratio", 0.96, 0.1, 1, "ratio", "critical from this share of a limit at which the kernel kills"),
            ),
        ),
        Rule(
            "leak", "Memory grows, though not to its limit before the run ends, or not soon.", _decide_leak, _leaks, looks="turn",
            thresholds=(Threshold("grown_ratio", 0.1, 0.01, 1, "ratio", "grown by this share of the limit so far"),),
        ),
        Rule(
            "high_water", "Steps peak close to the device's limit.", _decide_high_water, _is_nearly_full, looks="turn",
            thresholds=(Threshold("used_ratio", 0.97, 0.1, 1, "ratio", "the peak's share of the limit"),),
        ),
        Rule(
            "fragmentation", "Much of what is reserved are pieces too small to use.", _decide_fragmentation, _is_fragmented, looks="turn",
            thresholds=(Threshold("split_ratio", 0.15, 0.01, 1, "ratio", "inactive split blocks as a share of the limit"),),
        ),
        Rule(
            "prediction_mismatch", "The run needs far more than was predicted.", _decide_prediction_mismatch, _was_mispredicted,
            looks="turn",
            thresholds=(
                Threshold("over_ratio", 1.2, 1, 10, "ratio", "observed peak over the predicted one"),
                Threshold("over_bytes", 512 * 2**20, 0, 2**40, "bytes", "and at least so much more"),
            ),
        ),
        Rule(
            "rank_imbalance", "One rank needs far more than the others.", _decide_rank_imbalance, _is_lopsided, looks="run",
            thresholds=(Threshold("peak_ratio", 1.25, 1.01, 10, "ratio", "its peak over the median of the others"),),
        ),
        Rule(
            "stalled", "The process is alive and takes no step: a hang, a deadlock, a very long evaluation.", _decide_stalled,
            _stands_still, looks="run",
            thresholds=(
                Threshold("silent_s", 600, 30, 604_800, "s", "no step for at least this long"),
                Threshold("silent_steps", 20, 1, 100_000, "ratio", "and for so many times what a step takes"),
            ),
        ),
    )
}  # fmt: skip


def how_it_ended(rule: str, summary: str, state: str, first_step: int, step: int) -> str:
    """The summary of an alert that is over: how it ended, and what it had said."""
    ahead = max(0, step - first_step)
    if rule == "oom_forecast":
        first = f"first warned of at step {first_step:,}"
        return {
            "oom": f"ran out of memory at step {step:,}, {ahead:,} steps after the first warning at step {first_step:,}",
            "lost_contact": f"was not heard of after step {step:,}; out of memory was {first}",
            "finished": f"ended at step {step:,} before its memory ran out; {first}",
            "averted": f"is no longer expected to run out of memory at step {step:,}; {first}",
            "ok": f"out of memory was expected at step {first_step:,}, and not confirmed",
        }[state]
    ended = {
        "averted": f"is over since step {step:,}", "ok": "was not confirmed", "finished": f"stood until the run ended at step {step:,}",
        "oom": f"stood when the run died of out-of-memory at step {step:,}",
        "lost_contact": f"stood when the run fell silent at step {step:,}",
    }[state]  # fmt: skip
    return f"{ended}; before: {summary}"
