"""Record in plain words: what the pages say of a run, its forecast and its end. Pure: values in, text out.

A *tone* is how grave something is, and the only thing that colours are chosen by: `ok notice warning critical`, `busy` for what is
going on, `plain` for the rest. No meaning is carried by colour alone: every tone comes with words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memagent.forecast.types import PAGING_LEVELS
from memagent.units import format_bytes, format_duration

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Badge:
    """A short label. `hint` says the same in a sentence."""

    tone: str
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Headline:
    """What a run page says first: one sentence, and one more that gives the figures behind it."""

    tone: str
    text: str
    detail: str = ""


_STATUSES = {
    "running": Badge("busy", "running", "Samples are coming in"),
    "completed": Badge("ok", "completed", "Ended by itself, without an error"),
    "failed": Badge("warning", "failed", "Ended with an error other than out-of-memory"),
    "oom": Badge("critical", "out of memory", "Died of out-of-memory"),
    "lost_contact": Badge(
        "notice", "lost contact", "Stopped sending without saying why; it may have been killed"
    ),
}

_STATES = {
    "pending": Badge(
        "notice", "pending", "Seen once; waits for confirmation before anybody is told"
    ),
    "firing": Badge("critical", "firing", "Confirmed, and people have been told"),
    "averted": Badge("ok", "averted", "The danger went away while the run went on"),
    "finished": Badge("ok", "finished", "The run ended before it ran out of memory"),
    "oom": Badge("critical", "out of memory", "It came true: the run died of out-of-memory"),
    "lost_contact": Badge(
        "notice", "lost contact", "The run stopped sending while the alert was open"
    ),
    "ok": Badge(
        "plain", "not confirmed", "Seen, and gone before it was confirmed; nobody was told"
    ),
}

_DELIVERIES = {
    "waiting": Badge("busy", "waiting", "Will be sent"),
    "leased": Badge("busy", "sending", "Is being sent"),
    "sent": Badge("ok", "sent", "The channel took it"),
    "dead": Badge("critical", "given up", "The channel refused it for good"),
    "skipped": Badge("plain", "skipped", "Not severe enough for this channel"),
}


def status_badge(status: str) -> Badge:
    return _STATUSES.get(status, Badge("plain", status))


def state_badge(state: str, severity: str = "") -> Badge:
    """Of an alert; a firing warning is less grave than a firing critical one."""
    if state == "firing" and severity == "warning":
        return Badge("warning", "firing", _STATES["firing"].hint)
    if state == "firing" and severity == "note":
        return Badge("notice", "noted", "It stands; nobody was told, for its rule only takes note")
    if severity == "note" and state in _STATES:
        return Badge("plain", _STATES[state].text, _STATES[state].hint)
    return _STATES.get(state, Badge("plain", state))


CHANGES_SHOWN = 12


@dataclass(frozen=True)
class IncidentView:
    """An incident in one card: the words of the alert that stands for all, and the changes and messages of all of them."""

    summary: str
    changes: Sequence[Record]
    notifications: Sequence[Record]
    hidden_changes: int = 0


def incident_view(incident: Record) -> IncidentView:
    """The newest CHANGES_SHOWN changes of all its alerts in order. The alert that made the incident what it is now speaks for it."""
    alerts = incident["alerts"]
    changes = [
        {**change, "rank": alert["rank"]} for alert in alerts for change in alert["transitions"]
    ]
    folded = _folded(sorted(changes, key=lambda change: change["at"]))
    speaker = next((alert for alert in alerts if alert["state"] == incident["state"]), alerts[0])
    notes = [note for alert in alerts for note in alert["notifications"]]
    hidden_changes = max(0, len(folded) - CHANGES_SHOWN)
    return IncidentView(speaker["summary"], folded[hidden_changes:], notes, hidden_changes)


def incident_ranks(incident: Record) -> str:
    """The ranks that have it, in words; nothing where no alert knows its rank."""
    return name_ranks({alert["rank"] for alert in incident["alerts"]})


def name_ranks(ranks: Collection[int | None]) -> str:
    """`rank 3`, `8 ranks: 0 to 7`, `3 ranks: 0, 2, 5`."""
    known = sorted(rank for rank in ranks if rank is not None)
    if len(known) < 2:
        return f"rank {known[0]}" if known else ""
    is_dense = len(known) > 2 and known == list(range(known[0], known[-1] + 1))
    return f"{len(known)} ranks: " + (
        f"{known[0]} to {known[-1]}" if is_dense else ", ".join(map(str, known))
    )


def _folded(changes: Sequence[Record]) -> list[Record]:
    """Changes of several ranks to the same state at the same step as one, with `ranks` in words; the first one's reason stands for all."""
    found: dict[tuple[str, str, int], tuple[Record, set[int | None]]] = {}
    for change in changes:
        key = (change["to_state"], change["severity"], change["step"])
        found.setdefault(key, (change, set()))[1].add(change["rank"])
    return [{**change, "ranks": name_ranks(ranks)} for change, ranks in found.values()]


def time_to(at: str, now: float) -> str:
    """How long it is until an ISO 8601 time."""
    return format_duration(max(0.0, to_seconds(at) - now))


def delivery_badge(state: str) -> Badge:
    return _DELIVERIES.get(state, Badge("plain", state))


def forecast_badge(run: Record) -> Badge | None:
    """Of a run in the list; None where nothing is to be forecast: it has ended, or has said nothing yet."""
    forecast = run.get("forecast")
    if run["status"] != "running" or not forecast:
        return None
    level, left = forecast["level"], steps_left(run, forecast)
    if level == "ok":
        return Badge("ok", "fits", "No sign that it runs out of memory")
    if left is None:
        return Badge(level, level, f"May run out of memory{_because(forecast)}")
    return Badge(
        level, f"~{steps(left)}", f"Runs out of memory in about {steps(left)}{_because(forecast)}"
    )


def headline(
    run: Record, forecast: Record | None, first_warning_step: int | None, now: float
) -> Headline:
    """The first sentence of a run page. `forecast` is the gravest of the run's newest ones."""
    status, step = run["status"], run["step"]
    if status == "oom":
        return Headline(
            "critical",
            f"Died of out-of-memory at step {count(step)}",
            _warned(step, first_warning_step),
        )
    if status == "failed":
        return Headline("warning", f"Failed at step {count(step)}", _peak(run))
    if status == "lost_contact":
        silent = f"Silent for {format_duration(_since(run.get('last_seen_at'), now))}."
        return Headline(
            "notice",
            f"Lost contact at step {count(step)}",
            f"{silent} {_last_words(forecast)}".strip(),
        )
    if run.get("peak_bytes") is None:
        return Headline("busy" if status == "running" else "plain", "Waiting for the first sample")
    if status == "completed":
        return Headline("ok", f"Completed: {_peak(run)}", _warned_in_vain(first_warning_step))
    return _outlook(run, forecast)


def steps_left(run: Record, forecast: Record) -> float | None:
    """Steps from where the run is to where the forecast puts the limit; None where it names no step."""
    eta = forecast.get("eta_step")
    return None if eta is None else max(0.0, eta - max(run["step"], forecast.get("step") or 0))


def format_part_of(part: float | None, whole: float | None) -> str:
    """`3.10 of 8.00 GiB`, with the unit once where both have the same."""
    if whole is None:
        return format_bytes(part)
    number, _, unit = format_bytes(part).partition(" ")
    return f"{number} of {format_bytes(whole)}" if format_bytes(whole).endswith(f" {unit}") else (
        f"{format_bytes(part)} of {format_bytes(whole)}"
    )  # fmt: skip


def signed_bytes(size: float | None) -> str:
    """`+1.21 GiB`, `−3.0 MiB`, `0 B`, and a dash for None: with a true minus sign."""
    text = format_bytes(size)
    return f"+{text}" if size is not None and size > 0 else text.replace("-", "−")


def count(number: float | None) -> str:
    """`1,234`, and a dash for None."""
    return "–" if number is None else f"{number:,.0f}"


def steps(number: float) -> str:
    """About so many steps, to two digits: `420 steps`, `1 step`, `1,200 steps`."""
    whole = round(number)
    if whole >= 100:
        magnitude = 10 ** (len(str(whole)) - 2)
        whole = round(whole / magnitude) * magnitude
    return f"{whole:,} step{'' if whole == 1 else 's'}"


def ago(at: str | None, now: float) -> str:
    """`just now`, `3 min ago`, of an ISO 8601 time; a dash for None."""
    seconds = _since(at, now)
    if seconds is None:
        return "–"
    return "just now" if seconds < 5 else f"{format_duration(seconds)} ago"


def duration_between(started_at: str | None, ended_at: str | None, now: float) -> str:
    """How long something took, or has been going on."""
    if started_at is None:
        return "–"
    end = now if ended_at is None else to_seconds(ended_at)
    return format_duration(max(0.0, end - to_seconds(started_at)))


def to_seconds(at: str) -> float:
    """UTC seconds since the Unix epoch of an ISO 8601 time as the API writes it."""
    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


_SPELT = {"oom": "OOM", "pagerduty": "PagerDuty"}


def humanize(identifier: str) -> str:
    """`optimizer state` of `optimizer_state`, `OOM forecast` of `oom_forecast`."""
    return " ".join(_SPELT.get(word, word) for word in identifier.split("_"))


def _outlook(run: Record, forecast: Record | None) -> Headline:
    if forecast is None:
        return Headline("busy", f"Running: {_peak(run)}", "No forecast yet.")
    level, left = forecast["level"], steps_left(run, forecast)
    if level == "ok":
        return Headline("ok", f"Fits: {_peak(run)}", "No sign that it runs out of memory.")
    verb = "Runs" if level in PAGING_LEVELS else "May run"
    when = (
        ""
        if left is None
        else " any moment now"
        if left < 1
        else f" in about {steps(left)}{_time_left(forecast, left)}"
    )
    return Headline(level, f"{verb} out of memory{when}", _growth(forecast))


def _time_left(forecast: Record, left: float) -> str:
    """The forecast's seconds, less the share of its way that the run has gone since."""
    seconds, whole = forecast.get("eta_s"), forecast["eta_step"] - (forecast.get("step") or 0)
    if seconds is None or whole <= 0:
        return ""
    return f" ({format_duration(seconds * min(1.0, left / whole))})"


def _growth(forecast: Record) -> str:
    if forecast.get("used_bytes") is None:
        return ""
    used = f"{format_part_of(forecast.get('used_bytes'), forecast.get('limit_bytes'))} used"
    growth, since = forecast.get("growth_bytes_per_step"), forecast.get("growing_since_step")
    if not growth:
        return f"{used}."
    return f"{used}, {format_bytes(growth)} more each step{f' since step {count(since)}' if since is not None else ''}."


def _peak(run: Record) -> str:
    return f"peak {format_part_of(run.get('peak_bytes'), run.get('limit_bytes'))}"


def _because(forecast: Record) -> str:
    return f" (cause: {humanize(forecast['cause'])})" if forecast.get("cause") else ""


def _warned(step: int, first_warning_step: int | None) -> str:
    if first_warning_step is None:
        return "No warning came before."
    before = max(0, step - first_warning_step)
    return f"First warning {before:,} step{'' if before == 1 else 's'} before, at step {count(first_warning_step)}."


def _warned_in_vain(first_warning_step: int | None) -> str:
    return (
        ""
        if first_warning_step is None
        else f"There had been a warning at step {count(first_warning_step)}."
    )


def _last_words(forecast: Record | None) -> str:
    if forecast is None or forecast["level"] not in PAGING_LEVELS:
        return ""
    eta = forecast.get("eta_step")
    return f"It was expected to run out of memory{f' at step {count(eta)}' if eta is not None else ''}."


def _since(at: str | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - to_seconds(at))
