"""The first sentences of a run page: how the run ended, or whether it will. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memagent.forecast.types import LEAK_CAUSES, PAGING_LEVELS
from memagent.oom.report import EXPLAINED_SHARE
from memagent.units import format_bytes, format_duration
from memagent_server.schemas.predictions import Forecast, ForecastSummary
from memagent_server.schemas.runs import RunSummary, Stream
from memagent_server.schemas.snapshots import SuspectByRank
from memagent_server.web.labels import (
    MIN_RISK,
    ago,
    count,
    forecast_sentence,
    format_part_of,
    rank_of,
    seconds_since,
    step_list,
)

_EARLY_ENDS = {"failed": ("warning", "Failed"), "stopped": ("plain", "Stopped")}
_CAUSES_OUTSIDE_TENSORS = ("fragmentation", "other_processes", "host_memory")
_SUDDEN_CAUSES = ("tail", "input", "optimizer_state", "eval", "compile")
"""These may reach the limit in one step, wherever steady growth leads."""
_FRESH_S = 60.0
_FRESH_RATIO = 0.8
"""Age, and share of the run's steps, up to which a forecast is shown without its step and age."""


@dataclass(frozen=True)
class Headline:
    """The first sentence of a run page, and another with the figures behind it."""

    tone: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Moment:
    """The rest of a headline's content: the step that failed, the newest peak, and now.

    `newest` has the newest readings of the rank and device that the forecast is about.
    """

    now: float
    warning_steps: Sequence[int] = ()
    failed_step: int | None = None
    newest: Stream | None = None


def headline(
    run: RunSummary, forecast: Forecast | ForecastSummary | None, moment: Moment
) -> Headline:
    """Return the headline of a run page. `forecast` is the most severe of the run's newest ones."""
    status, step, now = run.status, run.step, moment.now
    if status == "oom":
        # runs report the last step that they completed
        failed_step = step + 1 if moment.failed_step is None else moment.failed_step
        return Headline(
            "critical",
            f"Out of memory in step {count(failed_step)}",
            _warning_lead(failed_step, moment.warning_steps),
        )
    if status in _EARLY_ENDS:
        tone, verb = _EARLY_ENDS[status]
        return Headline(tone, f"{verb} at step {count(step)}", _peak(run))
    if status == "lost_contact":
        silence = f"No contact for {format_duration(seconds_since(run.last_seen_at, now))}."
        return Headline(
            "notice",
            f"Lost contact at step {count(step)}",
            f"{silence} {_expected_end(forecast)}".strip(),
        )
    if run.peak_bytes is None:
        return _headline_without_memory(status, step)
    if status == "completed":
        return Headline("ok", f"Completed: {_peak(run)}", _false_warning(moment.warning_steps))
    return _running_headline(run, forecast, moment)


def _headline_without_memory(status: str, step: int) -> Headline:
    """Return the headline of a run that has no memory yet, or never will: an imported one."""
    if status == "completed" and step:
        return Headline("ok", f"Completed at step {count(step)}")
    return Headline("busy" if status == "running" else "plain", "Waiting for the first sample")


def _running_headline(
    run: RunSummary, forecast: Forecast | ForecastSummary | None, moment: Moment
) -> Headline:
    if forecast is None:
        return Headline("busy", f"Running: {_peak(run)}", "No forecast yet.")
    if forecast.level == "ok":
        return _calm_headline(run, forecast, moment)
    return Headline(forecast.level, forecast_sentence(run, forecast), _growth(forecast, moment))


def suspect_share(suspect: SuspectByRank, forecast: Forecast | ForecastSummary | None) -> str:
    """Return how much of the forecast's growth a suspect explains: the end of a sentence."""
    if not suspect.bytes_per_step:
        return ""
    rate = f"{format_bytes(suspect.bytes_per_step)} a step"
    growth = None
    if isinstance(forecast, Forecast) and forecast.cause in LEAK_CAUSES:
        growth = forecast.growth_bytes_per_step
    share = suspect.bytes_per_step / growth if growth else None
    if share is None or share > 1 / EXPLAINED_SHARE:
        return f", {rate} when it was found at step {count(suspect.step)}"
    return ", which explains it" if share > EXPLAINED_SHARE else f", which explains {rate}"


def _calm_headline(
    run: RunSummary, forecast: Forecast | ForecastSummary, moment: Moment
) -> Headline:
    growth, end = "", None
    if isinstance(forecast, Forecast) and forecast.growth_bytes_per_step:
        growth, rank = _growth(forecast, moment), rank_of(run, forecast).strip()
        growth = f"{rank.capitalize()}: {growth[0].lower()}{growth[1:]}" if rank else growth
        end = _limit_step(forecast, moment.newest)
    if forecast.oom_probability < MIN_RISK:
        return Headline("ok", f"Fits: {_peak(run)}", growth or "No sign of running out of memory.")
    if end is None:
        risk = f"Probability of running out of memory: {100 * forecast.oom_probability:.0f} %."
        return Headline("ok", f"Low risk: {_peak(run)}", f"{growth} {risk}".strip())
    if run.total_steps and end > run.total_steps:
        plan = f"At this rate it fits until the last step, {count(run.total_steps)}."
        return Headline("ok", f"Fits: {_peak(run)}", f"{growth} {plan}")
    planned = f" of {count(run.total_steps)}" if run.total_steps else ""
    text = f"Memory grows: at this rate it reaches the limit at about step {count(end)}{planned}"
    return Headline("notice", text, f"{growth} A warning follows if that becomes likely.")


def _limit_step(forecast: Forecast, newest: Stream | None) -> int | None:
    """Return the step at which growth of the forecast's pace reaches the limit, None if unknown."""
    step, used = forecast.step, forecast.used_bytes
    limit, growth = forecast.limit_bytes, forecast.growth_bytes_per_step
    if newest is not None and (peak := _newest_peak(forecast, newest)) is not None:
        step, used, limit = newest.last_step or step, int(peak), limit or newest.limit_bytes
    if used is None or limit is None or not growth or forecast.cause in _SUDDEN_CAUSES:
        return None
    return step + round(max(0, limit - used) / growth)


def _growth(forecast: Forecast | ForecastSummary, moment: Moment) -> str:
    """Return the newest peak and the growth; a forecast older than the peak is dated."""
    if not isinstance(forecast, Forecast):
        return ""
    parts = [usage] if (usage := _usage(forecast, moment.newest)) else []
    if growth := forecast.growth_bytes_per_step:
        since = forecast.growing_since_step
        start = f" since step {count(since)}, now" if since is not None else ""
        parts.append(f"growing{start} by {format_bytes(growth)} a step")
    last_run = (forecast.predecessor or "").rstrip(".")
    text = ". ".join(filter(None, (", ".join(parts), last_run)))
    age = seconds_since(forecast.at, moment.now) or 0.0
    is_current = forecast.level == "ok" and _is_current(forecast, moment.newest)
    if age >= _FRESH_S and not is_current:
        dated = f"Forecast of step {count(forecast.step)}, {ago(forecast.at, moment.now)}."
        return f"{text}. {dated}" if text else dated
    return f"{text}." if text else ""


def _is_current(forecast: Forecast, newest: Stream | None) -> bool:
    """Return True if the worker keeps up: it writes growth again each tenth of a run's steps."""
    return newest is not None and forecast.step >= _FRESH_RATIO * (newest.last_step or 0)


def _newest_peak(forecast: Forecast, newest: Stream) -> float | None:
    """Return the newest step's peak, None if the forecast is about other memory than tensors."""
    is_of_tensors = forecast.cause not in _CAUSES_OUTSIDE_TENSORS
    return newest.latest.get("peak_allocated_bytes") if is_of_tensors else None


def _usage(forecast: Forecast, newest: Stream | None) -> str:
    """Return the newest step's peak, or what the forecast saw if it is about other memory."""
    if newest is not None and (peak := _newest_peak(forecast, newest)) is not None:
        limit = forecast.limit_bytes or newest.limit_bytes
        return f"{format_part_of(peak, limit)} at the peak of step {count(newest.last_step)}"
    if forecast.used_bytes is None:
        return ""
    return f"{format_part_of(forecast.used_bytes, forecast.limit_bytes)} used"


def _peak(run: RunSummary) -> str:
    return f"peak {format_part_of(run.peak_bytes, run.limit_bytes)}"


def _warning_lead(failed_step: int, warning_steps: Sequence[int]) -> str:
    if not warning_steps:
        return "There was no warning."
    first, *later = warning_steps
    before = max(0, failed_step - first)
    lead = f"{before:,} step{'' if before == 1 else 's'}"
    again = f", and again after it was averted, at {step_list(later)}" if later else ""
    return f"First warning {lead} earlier, at step {count(first)}{again}."


def _false_warning(warning_steps: Sequence[int]) -> str:
    return f"There was a warning at step {count(warning_steps[0])}." if warning_steps else ""


def _expected_end(forecast: Forecast | ForecastSummary | None) -> str:
    if forecast is None or forecast.level not in PAGING_LEVELS:
        return ""
    eta = forecast.eta_step
    when = f" at step {count(eta)}" if eta is not None else ""
    return f"It was expected to run out of memory{when}."
