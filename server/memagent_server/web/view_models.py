"""Figures that pages draw: bars, tables and what the chart's script must know. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memagent.units import format_bytes
from memagent.wire.fields import PHASES
from memagent_server.store.streams import phase_of
from memagent_server.web.labels import Record, format_part_of, humanize, signed_bytes

MOST_MARKERS = 60
MOST_PAIRS = 300
MOST_PHASES = 4
STACKED = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buffers",
    "context",
    "other",
    "activations",
)
"""From the bottom to the top: what a run has from its start lies below what each step makes anew."""
_DRAWN = (
    "level",
    "step",
    "used_bytes",
    "limit_bytes",
    "eta_step",
    "eta_low",
    "eta_high",
    "growth_bytes_per_step",
)
_QUIET_EVENTS = ("phase", "attach", "finish", "hints")
"""Events that happen in every run, or all the time: the chart would drown in them."""


@dataclass(frozen=True)
class MemoryBar:
    """Widths in per cent of the limit, at most 100; None where it is not known."""

    peak: float
    predicted: float | None
    tone: str
    text: str


@dataclass(frozen=True)
class ComparedRow:
    """One figure, predicted beside observed. Widths in per cent of the largest figure of the table."""

    name: str
    predicted: str
    observed: str
    residual: str
    tone: str
    predicted_width: float | None
    observed_width: float | None
    note: str | None = None


def memory_bar(run: Record) -> MemoryBar | None:
    """Peak against limit, with the predicted peak as a mark; None before the first sample."""
    peak, limit = run.get("peak_bytes"), run.get("limit_bytes")
    if peak is None:
        return None
    predicted = run.get("predicted_peak_bytes")
    return MemoryBar(
        peak=_percent(peak, limit) or 0.0,
        predicted=_percent(predicted, limit),
        tone=_bar_tone(run),
        text=format_part_of(peak, limit),
    )


@dataclass(frozen=True)
class Sparkline:
    """Points of the curve and of the area below it, on 100 by 24."""

    line: str
    area: str


def sparkline(peaks: Sequence[int | None] | None) -> Sparkline | None:
    """The course of memory from nothing to its peak; None where fewer than two figures are known."""
    known = [(place, peak) for place, peak in enumerate(peaks or ()) if peak is not None]
    if len(known) < 2:
        return None
    (first, _), (last, _) = known[0], known[-1]
    largest = max(peak for _, peak in known) or 1
    points = [
        f"{100 * (place - first) / (last - first):.1f},{23 - 21 * peak / largest:.1f}"
        for place, peak in known
    ]
    return Sparkline(" ".join(points), " ".join(["0,24", *points, "100,24"]))


def residual_label(run: Record) -> tuple[str, str] | None:
    """(text, tone) of a run's peak beside the predicted one: `+43 % on predicted`."""
    peak, predicted = run.get("peak_bytes"), run.get("predicted_peak_bytes")
    if peak is None or not predicted:
        return None
    percent = round(100 * (peak / predicted - 1))
    text = "as predicted" if abs(percent) < 2 else f"{percent:+,} % on predicted".replace("-", "−")
    return text, residual_tone(peak - predicted, predicted)


def compared_groups(compared: Record) -> list[tuple[str, list[ComparedRow]]]:
    """GET /components as titled groups of rows: components, the peak at each level, the peak of each phase. Empty groups are left out."""
    named = (
        ("Components", [(humanize(row["component"]), row) for row in compared["components"]]),
        ("Peak", [(row["level"], row) for row in compared["levels"]]),
        ("Peak by phase", [(humanize(row["phase"]), row) for row in compared["phases"]]),
    )
    rows = [row for _, group in named for _, row in group]
    largest = max(
        (row[key] or 0 for row in rows for key in ("predicted_bytes", "observed_bytes")), default=0
    )
    return [
        (title, _said_once([_compared_row(name, row, largest) for name, row in group]))
        for title, group in named
        if group
    ]


def _said_once(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """A reason that was said for the row above is not said again in full."""
    above = [None, *(row.note for row in rows)]
    return [
        replace(row, note="Likely the same.")
        if row.note and row.note == before and row.note.startswith("Likely")
        else row
        for row, before in zip(rows, above, strict=False)
    ]


def choose_stream(streams: Sequence[Record], rank: int | None, device: str | None) -> Record | None:
    """The stream to chart: the one asked for, else the fullest of the newest launch."""
    wanted = [
        stream
        for stream in streams
        if (rank is None or stream["rank"] == rank)
        and (device is None or stream["device"] == device)
    ]
    return max(
        wanted or streams, key=lambda stream: (_fullness(stream), -stream["rank"]), default=None
    )


def chart_facts(
    run: Record,
    stream: Record,
    newest: Sequence[Record],
    first_warning: Record | None,
    predicted_peak_bytes: int | None,
) -> dict[str, Any]:
    """What the chart's script draws besides the series.

    `run` is as GET /runs/{id} describes it, `newest` the newest forecasts of all its streams, `first_warning` this stream's.
    """
    return {
        "rank": stream["rank"],
        "device": stream["device"],
        "kind": stream["kind"],
        "first_step": stream["first_step"],
        "last_step": stream["last_step"],
        "limit_bytes": stream["limit_bytes"],
        "predicted_peak_bytes": predicted_peak_bytes,
        "is_running": run["status"] == "running",
        "forecast": drawn_forecast(
            run["status"], next(iter(_of_stream(newest, stream)), None), first_warning
        ),
        "phases": rare_phases(stream),
        "markers": markers(
            _of_stream(run["alerts"], stream),
            [event for event in run["events"] if event["rank"] == stream["rank"]],
        ),
    }


def rare_phases(stream: Record) -> list[str]:
    """Phases that are no part of every step (eval, checkpoint, the user's own): the chart marks the steps that had them."""
    seen = [phase for name in stream["latest"] if (phase := phase_of(name)) and phase not in PHASES]
    return sorted(seen, key=lambda phase: (phase not in ("eval", "checkpoint"), phase))[
        :MOST_PHASES
    ]


def stacked_parts(stream: Record) -> list[str]:
    """Components whose course a chart stacks up to the peak, with what is left over as `other`; none where the agent read none.

    A GPU's context lies beside the allocator, a host's is part of what the process holds.
    """
    latest, on_host = stream["latest"], stream["kind"] == "host"
    if latest.get("peak_allocated_bytes") is None:
        return []
    known = [
        name
        for name in STACKED
        if latest.get(f"{name}_bytes") is not None and (on_host or name != "context")
    ]
    return [name for name in STACKED if name in known or name == "other"] if known else []


def drawn_forecast(
    status: str, newest: Record | None, first_warning: Record | None
) -> dict[str, Any] | None:
    """The newest forecast of a run that goes on; of one that died the first warning, to hold it against what happened."""
    chosen = {"running": newest, "oom": first_warning, "lost_contact": first_warning}.get(status)
    if chosen is None or chosen["level"] == "ok" or chosen["eta_step"] is None:
        return None
    return {name: chosen[name] for name in _DRAWN}


def markers(alerts: Sequence[Record], events: Sequence[Record]) -> list[dict[str, Any]]:
    """Lines across the chart: alerts that fired or were averted, and what the agent told of."""
    found: list[dict[str, Any]] = []
    for alert in alerts:
        for transition in alert["transitions"]:
            if transition["from_state"] != transition["to_state"] and transition["to_state"] in (
                "firing",
                "averted",
            ):
                fires, is_note = transition["to_state"] == "firing", alert["severity"] == "note"
                tone = "plain" if is_note else alert["severity"] if fires else "ok"
                label = humanize(alert["rule"]) if is_note else "warning" if fires else "averted"
                if fires or not is_note:
                    found.append({"step": transition["step"], "label": label, "tone": tone})
    for event in events:
        if event["kind"] not in _QUIET_EVENTS:
            tone = "critical" if event["kind"] == "oom" else "plain"
            label = "out of memory" if event["kind"] == "oom" else humanize(event["kind"])
            found.append({"step": event["step"], "label": label, "tone": tone})
    distinct = {(marker["step"], marker["label"]): marker for marker in found}
    return sorted(distinct.values(), key=lambda marker: int(marker["step"]))[-MOST_MARKERS:]


def event_details(event: Record) -> list[tuple[str, str]]:
    """What an event says, as pairs. Of last words only what is short: the rest is the report of the death. Of a preflight its verdict."""
    data = event["data"]
    if event["kind"] == "preflight" and data.get("verdict"):
        return [("", str(data["verdict"]).removeprefix("preflight: "))]
    if event["kind"] == "oom":
        data = {
            key: value
            for key, value in data.items()
            if not isinstance(value, Mapping | list) and key != "error"
        }
    return (
        [_said_shortly(key, value) for key, value in data.items()]
        if event["kind"] == "oom"
        else pairs(data)
    )


def _said_shortly(key: str, value: Any) -> tuple[str, str]:
    """`asked` and `8.0 MiB` of asked_bytes: nobody reads a death to the byte."""
    if key.endswith("_bytes"):
        return humanize(key.removesuffix("_bytes")), format_bytes(value)
    return humanize(key), plain(value)


def pairs(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested mapping as (dotted key, text), at most MOST_PAIRS of them."""
    return [pair for pair, _ in zip(_pairs(values, prefix), range(MOST_PAIRS), strict=False)]


def _pairs(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _pairs(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(plain(item) for item in value) or "–"
        elif key.endswith("_bytes") and type(value) is int:
            yield f"{prefix}{key}", f"{value} ({format_bytes(value)})"
        else:
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> str:
    """One value as text: a dash for what is missing, yes and no for a truth."""
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compared_row(name: str, row: Record, largest: int) -> ComparedRow:
    residual = row["residual_bytes"]
    return ComparedRow(
        name=name,
        predicted=format_bytes(row["predicted_bytes"]),
        observed=format_bytes(row["observed_bytes"]),
        residual=signed_bytes(residual),
        tone=residual_tone(residual, row["predicted_bytes"]),
        predicted_width=_percent(row["predicted_bytes"], largest),
        observed_width=_percent(row["observed_bytes"], largest),
        note=_note(row),
    )


def _note(row: Record) -> str | None:
    """The likely reason of a residual, or the interval of a level."""
    if row.get("reason"):
        return f"Likely: {row['reason']}."
    if row.get("low_bytes") is None or row.get("high_bytes") is None:
        return None
    return f"9 in 10 runs: {format_bytes(row['low_bytes'])} to {format_bytes(row['high_bytes'])}"


def residual_tone(residual: int | None, predicted: int | None) -> str:
    """More memory than predicted is worth a look from a tenth on; less never hurt anybody."""
    if residual is None or not predicted or residual <= 0.1 * predicted:
        return "plain"
    return "warning" if residual > 0.5 * predicted else "notice"


def _of_stream(items: Iterable[Record], stream: Record) -> list[Record]:
    return [
        item
        for item in items
        if (item["rank"], item["device"]) == (stream["rank"], stream["device"])
    ]


def _fullness(stream: Record) -> float:
    peak, limit = stream["peak_bytes"], stream["limit_bytes"]
    return peak / limit if peak and limit else 0.0


def _bar_tone(run: Record) -> str:
    if run["status"] == "oom":
        return "critical"
    forecast = run.get("forecast")
    return (
        forecast["level"]
        if run["status"] == "running" and forecast and forecast["level"] != "ok"
        else "plain"
    )


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(min(100.0, max(0.0, 100 * part / whole)), 2)
