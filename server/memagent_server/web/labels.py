"""The texts of the pages about runs, forecasts and alerts. Pure functions: values in, text out.

A *tone* is the severity of something and decides its color: `ok`, `notice`, `warning`, `critical`,
`busy` for anything in progress, and `plain` for the rest. Color never carries meaning alone: every
tone comes with a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from textwrap import dedent

from markupsafe import Markup, escape
from msgspec import structs

from memagent.estimator.advice.line_fixes import diff_of
from memagent.forecast.types import PAGING_LEVELS
from memagent.units import format_bytes, format_duration, parse_bytes
from memagent_server.schemas.predictions import Forecast, ForecastSummary
from memagent_server.schemas.runs import ResourceUse, RunSummary, Stream
from memagent_server.schemas.snapshots import SuspectLine
from memagent_server.settings import CHANNEL_NAMES


@dataclass(frozen=True)
class Badge:
    """A short label, with `hint` as its tooltip."""

    tone: str
    text: str
    hint: str = ""


_STATUSES = {
    "running": Badge("busy", "running", "Samples are arriving"),
    "completed": Badge("ok", "completed", "Ended without an error"),
    "stopped": Badge(
        "plain", "stopped", "Ended from outside: by a signal, a scheduler or a person"
    ),
    "failed": Badge("warning", "failed", "Ended with an error other than out-of-memory"),
    "oom": Badge("critical", "out of memory", "The run ran out of memory"),
    "lost_contact": Badge(
        "notice",
        "lost contact",
        "Stopped sending without a reason; the process may have been killed",
    ),
}

_MIN_SHOWN = 0.01
MIN_RISK = 0.05
"""Pages give a probability from this one on."""


def status_badge(status: str) -> Badge:
    return _STATUSES.get(status, Badge("plain", status))


def time_to(at: str, now: float) -> str:
    """Return the duration until an ISO 8601 time."""
    return format_duration(max(0.0, to_seconds(at) - now))


def forecast_badge(run: RunSummary) -> Badge | None:
    """Return a run's forecast badge in the list; None if it has ended or has no forecast."""
    forecast = run.forecast
    if run.status != "running" or forecast is None:
        return None
    level, remaining = forecast.level, steps_left(run, forecast)
    if level == "ok":
        return _calm_badge(forecast.oom_probability)
    if remaining is None:
        return Badge(level, level, f"May run out of memory{_because(forecast)}")
    return Badge(
        level,
        f"~{steps(remaining)}",
        f"Runs out of memory in about {steps(remaining)}{_because(forecast)}",
    )


def _calm_badge(probability: float) -> Badge:
    if probability < MIN_RISK:
        return Badge("ok", "fits", "No sign of running out of memory")
    return Badge(
        "plain", "watched", "Something grows or varies: the limit is too far off for a notice"
    )


def steps_left(run: RunSummary, forecast: Forecast | ForecastSummary) -> float | None:
    """Return the steps until the forecast reaches the limit, None if the forecast names no step."""
    if forecast.eta_step is None:
        return None
    return max(0.0, forecast.eta_step - max(run.step, forecast.step))


def step_list(numbers: Sequence[int]) -> str:
    """Return `step 7`, or `steps 7, 9 and 12`."""
    *others, last = map(count, numbers)
    return f"steps {', '.join(others)} and {last}" if others else f"step {last}"


def format_part_of(part: float | None, whole: float | None) -> str:
    """Return `3.10 of 8.00 GiB`: a unit that both share is written once, with equal decimals."""
    if part is None or whole is None:
        return format_bytes(part) if whole is None else f"– of {format_bytes(whole)}"
    number, unit = format_bytes(part).split(" ")
    total, whole_unit = format_bytes(whole).split(" ")
    if unit != whole_unit:
        return f"{number} {unit} of {total} {whole_unit}"
    decimals = max(len(text.partition(".")[2]) for text in (number, total))
    scale = parse_bytes(f"1 {unit}")
    return f"{part / scale:.{decimals}f} of {whole / scale:.{decimals}f} {unit}"


def signed_bytes(size: float | None) -> str:
    """Return `+1.21 GiB`, `−3.0 MiB` with a typographic minus, `0 B`, or a dash for None."""
    text = format_bytes(size)
    return f"+{text}" if size is not None and size > 0 else text.replace("-", "−")


def byte_range(low: float | None, high: float | None) -> str:
    """Return `1.2 GiB to 1.4 GiB`, or one size if both read the same."""
    least, most = format_bytes(low), format_bytes(high)
    return least if least == most else f"{least} to {most}"


def count(number: float | None) -> str:
    """Return `1,234`, or a dash for None."""
    return "–" if number is None else f"{number:,.0f}"


def steps(number: float) -> str:
    """Return a number of steps, rounded to two digits: `420 steps`, `1 step`, `1,200 steps`."""
    whole = round(number)
    if whole >= 100:
        magnitude = 10 ** (len(str(whole)) - 2)
        whole = round(whole / magnitude) * magnitude
    return f"{whole:,} step{'' if whole == 1 else 's'}"


def ago(at: str | None, now: float) -> str:
    """Return the age of an ISO 8601 time, `just now` or `3 min ago`; a dash for None."""
    seconds = seconds_since(at, now)
    if seconds is None:
        return "–"
    return "just now" if seconds < 5 else f"{format_duration(seconds)} ago"


def duration_between(started_at: str | None, ended_at: str | None, now: float) -> str:
    """Return the duration between two times; until now if the end is None."""
    if started_at is None:
        return "–"
    end = now if ended_at is None else to_seconds(ended_at)
    return format_duration(max(0.0, end - to_seconds(started_at)))


def resources(use: ResourceUse) -> str:
    """Return `12.4 GPU-hours, 3.1 kWh, 43.40 USD`, as far as known."""
    parts = ((use.gpu_hours, "GPU-hours"), (use.energy_kwh, "kWh"))
    texts = [f"{_rounded(value)} {unit}" for value, unit in parts if value is not None]
    if use.cost is not None:
        texts.append(f"{use.cost:,.2f} {use.currency}")
    return ", ".join(texts)


def _rounded(value: float) -> str:
    if value < _MIN_SHOWN:
        return f"under {_MIN_SHOWN}"
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}"


def to_seconds(at: str) -> float:
    """Return the Unix time of an ISO 8601 time as the API writes it."""
    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


def card_name(card: str) -> str:
    """Return a card's name as people write it: `H100 80GB HBM3`, `RTX 4090`."""
    return re.sub("NVIDIA |GeForce | Generation", "", card)


_SPELLINGS = {"oom": "OOM", "pagerduty": "PagerDuty"}


def line_diff(suspect: SuspectLine, stream: Stream | None) -> str:
    """Return the change of a suspect's line as a diff, "" if it needs more than that."""
    on_host = stream is not None and stream.device == "host"
    return diff_of(structs.asdict(suspect), on_host=on_host)


def as_code(text: str) -> Markup:
    """Return code for a `<pre>`; the lines of a diff are marked as removed and added."""
    if not text.startswith("- "):
        return escape(text)
    marked = (
        Markup("<{0}>{1}</{0}>").format("del" if line.startswith("- ") else "ins", line)
        for line in text.splitlines()
    )
    return Markup("\n").join(marked)


def without_indent(source: Sequence[str]) -> list[str]:
    """Return lines of a file without their common indent."""
    return dedent("\n".join(source)).split("\n")


def with_code(text: str) -> Markup:
    """Return a text as HTML, with what is in backticks as code."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(html)  # noqa: S704  # escaped above  # nosec B704


def humanize(identifier: str) -> str:
    """Return an identifier as words:

    `optimizer_state` as `optimizer state`, `oom_forecast` as `OOM forecast`.
    """
    return " ".join(_SPELLINGS.get(word, word) for word in identifier.split("_"))


def channel_name(channel: str) -> str:
    """Return `Slack webhook` for one of memagent's own channels, else the name as it was given."""
    if channel not in CHANNEL_NAMES:
        return channel
    words = humanize(channel)
    return words[0].upper() + words[1:]


def forecast_sentence(run: RunSummary, forecast: Forecast | ForecastSummary) -> str:
    remaining = steps_left(run, forecast)
    verb = "runs" if forecast.level in PAGING_LEVELS else "may run"
    text = f"{rank_of(run, forecast)}{verb} out of memory"
    if remaining is None:
        when = ""
    elif remaining < 1:
        return f"{text[0].upper()}{text[1:]} now"
    else:
        when = f" in about {steps(remaining)}{_time_left(forecast, remaining)}"
    return f"{text[0].upper()}{text[1:]}{when}"


def rank_of(run: RunSummary, forecast: Forecast | ForecastSummary) -> str:
    """Return the rank that a forecast is about, if the run has several."""
    has_rank = isinstance(forecast, Forecast) and run.world_size > 1
    return f"rank {forecast.rank} " if has_rank and isinstance(forecast, Forecast) else ""


def seconds_left(run: RunSummary) -> float:
    """Return the seconds until the forecast reaches the limit, infinite if it names no time."""
    forecast = run.forecast
    if forecast is None or (remaining := steps_left(run, forecast)) is None:
        return inf
    return inf if (left := _seconds_left(forecast, remaining)) is None else left


def oom_time(run: RunSummary) -> str:
    """Return `OOM in ~8 min`, by the forecast; empty if it names no time."""
    forecast = run.forecast
    if run.status != "running" or forecast is None:
        return ""
    remaining = steps_left(run, forecast)
    if remaining is None:
        return ""
    seconds = _seconds_left(forecast, remaining)
    if remaining < 1:
        return "OOM now"
    return f"OOM in ~{steps(remaining) if seconds is None else format_duration(seconds)}"


def _time_left(forecast: Forecast | ForecastSummary, remaining: float) -> str:
    seconds = _seconds_left(forecast, remaining)
    return "" if seconds is None else f" ({format_duration(seconds)})"


def _seconds_left(forecast: Forecast | ForecastSummary, remaining: float) -> float | None:
    """Return the forecast's time, scaled down by the steps done since the forecast."""
    if forecast.eta_s is None or forecast.eta_step is None or forecast.eta_step <= forecast.step:
        return None
    return forecast.eta_s * min(1.0, remaining / (forecast.eta_step - forecast.step))


def _because(forecast: ForecastSummary) -> str:
    return f" (cause: {humanize(forecast.cause)})" if forecast.cause else ""


def seconds_since(at: str | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - to_seconds(at))
