"""Alert rules on readings of memory and on the forecast made of them."""

from __future__ import annotations

from statistics import median

from msgspec.structs import asdict

from memagent.forecast.levels import PAGE_COST
from memagent.forecast.types import LEAK_CAUSES, PAGING_LEVELS
from memagent.wire.messages import KILLING_LIMITS
from memagent_server.alerts import summaries
from memagent_server.alerts.rule_definition import Rule, Threshold, Thresholds, exceeds
from memagent_server.alerts.rule_input import CALM, RuleInput, RuleResult
from memagent_server.alerts.state import PER_SAMPLE

MIN_SETTLED_STEP = 10
"""Earlier steps of a launch (lazy allocation, autotuning) say little about the rest."""


# -- oom_forecast: the run will reach its limit ----------------------------------------------------


def _decide_oom_forecast(
    rule_input: RuleInput, thresholds: Thresholds, _is_open: bool
) -> RuleResult:
    forecast = rule_input.forecast
    if forecast is None or forecast.level == "ok":
        return CALM
    is_next = forecast.eta_step is not None and forecast.eta_step - forecast.step <= 1
    if forecast.level == "notice" or forecast.eta_s is None or is_next:
        level: str = forecast.level
    else:
        level = "critical" if forecast.eta_s <= thresholds["critical_s"] else "warning"
    return RuleResult(level, forecast.cause, asdict(forecast) | {"level": level})


OOM_FORECAST = Rule(
    "oom_forecast",
    "The forecaster expects the run to reach its limit.",
    _decide_oom_forecast,
    summaries.oom_forecast,
    schedule="sample",
    tells="warning",
    hysteresis=PER_SAMPLE,
    thresholds=(
        Threshold(
            "critical_s", 120, 1, 86_400, "s", "critical if less than this is left, else a warning"
        ),
        Threshold(
            "page_cost",
            PAGE_COST,
            0,
            1,
            "ratio",
            "notify above this probability of running out of memory",
        ),
    ),
)


# -- leak: memory grows, but the run may survive it ------------------------------------------------


def _decide_leak(rule_input: RuleInput, thresholds: Thresholds, is_open: bool) -> RuleResult:
    forecast = rule_input.forecast
    if forecast is None:
        return CALM
    # oom_forecast has it; but a leak that was noted isn't over because it now threatens the run
    if forecast.level in PAGING_LEVELS and not is_open:
        return CALM
    if forecast.cause not in (None, *LEAK_CAUSES) or forecast.grown_bytes is None:
        return CALM
    if not forecast.growth_bytes_per_step or not forecast.limit_bytes:
        return CALM
    grown_ratio = forecast.grown_bytes / forecast.limit_bytes
    if not exceeds(grown_ratio, thresholds["grown_ratio"], is_open):
        return CALM
    return RuleResult("warning", forecast.cause or "leak", asdict(forecast))


LEAK = Rule(
    "leak",
    "Memory grows, but the limit is far away, or the run ends first.",
    _decide_leak,
    summaries.leak,
    schedule="turn",
    reading="grown_bytes",
    thresholds=(
        Threshold("grown_ratio", 0.1, 0.01, 1, "ratio", "growth so far as a share of the limit"),
    ),
)


# -- high_water: close to the limit ----------------------------------------------------------------


def _decide_high_water(rule_input: RuleInput, thresholds: Thresholds, is_open: bool) -> RuleResult:
    peak, limit = rule_input.peak_bytes, rule_input.limit_bytes
    if rule_input.kind == "host" or not peak or not limit:
        return CALM
    if not exceeds(peak / limit, thresholds["used_ratio"], is_open):
        return CALM
    return RuleResult("warning", None, {"used_bytes": peak, "limit_bytes": limit})


HIGH_WATER = Rule(
    "high_water",
    "Steps peak close to the device's limit.",
    _decide_high_water,
    summaries.high_water,
    schedule="turn",
    reading="used_bytes",
    thresholds=(
        Threshold("used_ratio", 0.97, 0.1, 1, "ratio", "the peak as a share of the limit"),
    ),
)


# -- fragmentation: free memory in pieces too small to use -----------------------------------------


def _decide_fragmentation(
    rule_input: RuleInput, thresholds: Thresholds, is_open: bool
) -> RuleResult:
    split, limit = rule_input.inactive_split_bytes, rule_input.limit_bytes
    if not split or not limit or not exceeds(split / limit, thresholds["split_ratio"], is_open):
        return CALM
    data = {
        "split_bytes": split,
        "reserved_bytes": rule_input.reserved_bytes,
        "used_bytes": rule_input.used_bytes,
        "limit_bytes": limit,
    }
    return RuleResult("warning", "fragmentation", data)


FRAGMENTATION = Rule(
    "fragmentation",
    "Much of the reserved memory consists of free pieces that are too small to use.",
    _decide_fragmentation,
    summaries.fragmentation,
    schedule="turn",
    reading="split_bytes",
    thresholds=(
        Threshold(
            "split_ratio", 0.15, 0.01, 1, "ratio", "inactive split blocks as a share of the limit"
        ),
    ),
)


# -- prediction_mismatch: more than the estimator predicted ----------------------------------------


def _decide_prediction_mismatch(
    rule_input: RuleInput, thresholds: Thresholds, is_open: bool
) -> RuleResult:
    peak, predicted = rule_input.launch_peak_bytes, rule_input.predicted_peak_bytes
    if not peak or not predicted or rule_input.step < MIN_SETTLED_STEP:
        return CALM
    if peak - predicted < thresholds["over_bytes"]:
        return CALM
    if not exceeds(peak / predicted, thresholds["over_ratio"], is_open):
        return CALM
    data = {"used_bytes": peak, "predicted_bytes": predicted, "limit_bytes": rule_input.limit_bytes}
    return RuleResult("warning", None, data)


PREDICTION_MISMATCH = Rule(
    "prediction_mismatch",
    "The run needs far more memory than predicted.",
    _decide_prediction_mismatch,
    summaries.prediction_mismatch,
    schedule="turn",
    reading="used_bytes",
    thresholds=(
        Threshold("over_ratio", 1.2, 1, 10, "ratio", "observed peak divided by the predicted one"),
        Threshold("over_bytes", 512 * 2**20, 0, 2**40, "bytes", "and at least this much above it"),
    ),
)


# -- rank_imbalance: one rank needs far more than the others ---------------------------------------


def _decide_rank_imbalance(
    rule_input: RuleInput, thresholds: Thresholds, is_open: bool
) -> RuleResult:
    peaks = rule_input.peak_by_rank
    if len(peaks) < 2 or rule_input.step < MIN_SETTLED_STEP:
        return CALM
    fullest = max(peaks, key=lambda rank: peaks[rank])
    others = median(peak for rank, peak in peaks.items() if rank != fullest)
    if not others or not exceeds(peaks[fullest] / others, thresholds["peak_ratio"], is_open):
        return CALM
    data = {
        "rank": fullest,
        "used_bytes": peaks[fullest],
        "others_bytes": int(others),
        "limit_bytes": rule_input.limit_bytes,
    }
    return RuleResult("warning", None, data)


RANK_IMBALANCE = Rule(
    "rank_imbalance",
    "One rank needs far more memory than the others.",
    _decide_rank_imbalance,
    summaries.rank_imbalance,
    schedule="run",
    thresholds=(
        Threshold(
            "peak_ratio", 1.25, 1.01, 10, "ratio", "its peak divided by the median of the others"
        ),
    ),
)


# -- host_memory: the kernel is about to kill the process ------------------------------------------


def _decide_host_memory(rule_input: RuleInput, thresholds: Thresholds, is_open: bool) -> RuleResult:
    used, limit, forecast = rule_input.used_bytes, rule_input.limit_bytes, rule_input.forecast
    if rule_input.kind != "host" or not used or not limit:
        return CALM
    if not is_open and forecast is not None and forecast.level in PAGING_LEVELS:
        return CALM  # oom_forecast has notified already
    ratio = used / limit
    data = {"used_bytes": used, "limit_bytes": limit, "limit_source": rule_input.limit_source}
    # At other limits (RLIMIT_AS, RLIMIT_DATA) an allocation fails, and the process reports it.
    if ratio >= thresholds["critical_ratio"] and rule_input.limit_source in KILLING_LIMITS:
        return RuleResult("critical", "host_memory", data)
    if not exceeds(ratio, thresholds["used_ratio"], is_open):
        return CALM
    return RuleResult("warning", "host_memory", data)


HOST_MEMORY = Rule(
    "host_memory",
    "The host's memory is nearly full; at the limit the kernel kills without warning.",
    _decide_host_memory,
    summaries.host_memory,
    schedule="turn",
    reading="used_bytes",
    tells="critical",
    thresholds=(
        Threshold("used_ratio", 0.9, 0.1, 1, "ratio", "a warning from this share of the limit"),
        Threshold(
            "critical_ratio",
            0.96,
            0.1,
            1,
            "ratio",
            "critical from this share, if the kernel kills at the limit",
        ),
    ),
)
