"""The data behind the drawings of pages: tables, and the input of the chart's script.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from memagent.units import format_bytes
from memagent.wire.fields import PHASES
from memagent.wire.messages import COMMAND_REPLY, SCRIPT_ALERT
from memagent_server.alerts.event_rules import MAX_CAUSE_LENGTH, SCRIPT
from memagent_server.schemas.alerts import Alert, Incident, Transition
from memagent_server.schemas.base import JsonObject, RunStatus
from memagent_server.schemas.predictions import (
    ComponentResidual,
    Components,
    Forecast,
    LevelResidual,
    PhaseResidual,
)
from memagent_server.schemas.runs import Run, RunEvent, Stream
from memagent_server.settings import SEVERITIES
from memagent_server.store.incidents import first_step_of
from memagent_server.store.streams import phase_of
from memagent_server.web.bars import percent_of, residual_tone
from memagent_server.web.labels import byte_range, humanize, signed_bytes

OfStream = TypeVar("OfStream", Forecast, Alert)
ComparedResidual = ComponentResidual | LevelResidual | PhaseResidual

MAX_MARKERS = 60
MAX_PAIRS = 300
MAX_PHASES = 4
STACKED = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buffers",
    "context",
    "other",
    "activations",
)
"""From bottom to top: components that live as long as the run are below those that each step
creates.
"""
_FORECAST_FIELDS = (
    "level",
    "step",
    "used_bytes",
    "limit_bytes",
    "eta_step",
    "eta_low",
    "eta_high",
    "growth_bytes_per_step",
)
_HIDDEN_EVENTS = ("phase", "attach", "finish", "hints", "diagnosis", SCRIPT_ALERT, COMMAND_REPLY)
"""Events of every run, too frequent for the chart, or there already: a script's are alerts."""
_UNLISTED_EVENTS = ("hints", "alert", "command", COMMAND_REPLY)
"""Events that a run's page has elsewhere."""


@dataclass(frozen=True)
class ComparedRow:
    """One value, predicted and observed.

    Widths are in per cent of the largest value of the table.
    """

    name: str
    predicted: str
    observed: str
    residual: str
    tone: str
    predicted_width: float | None
    observed_width: float | None
    note: str | None = None


def compared_groups(compared: Components) -> list[tuple[str, list[ComparedRow]]]:
    """Group the rows of GET /components: components, peak by level, peak by phase.

    Empty groups are omitted.
    """
    named: dict[str, list[tuple[str, ComparedResidual]]] = {
        "Components": [(humanize(row.component), row) for row in compared.components],
        "Peak": [(row.level, row) for row in compared.levels],
        "Peak by phase": [(humanize(row.phase), row) for row in compared.phases],
    }
    rows = [row for group in named.values() for _, row in group]
    largest = max(
        (max(row.predicted_bytes or 0, row.observed_bytes or 0) for row in rows), default=0
    )
    return [
        (title, _shorten_repeated_notes([_compared_row(name, row, largest) for name, row in group]))
        for title, group in named.items()
        if group
    ]


def _shorten_repeated_notes(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Shorten a reason that repeats that of the row above."""
    above = [None, *(row.note for row in rows)]
    return [
        replace(row, note="Same likely cause.")
        if row.note and row.note == before and row.note.startswith("Likely")
        else row
        for row, before in zip(rows, above, strict=False)
    ]


def choose_stream(streams: Sequence[Stream], rank: int | None, device: str | None) -> Stream | None:
    """Return the stream of a rank and device, the fullest of several.

    A rank without that device answers with its fullest; an unknown rank, with the fullest of all.
    """
    # a form that changes the rank sends the former rank's device, too
    of_rank = [stream for stream in streams if rank is None or stream.rank == rank]
    exact = [stream for stream in of_rank if device is None or stream.device == device]
    return max(
        exact or of_rank or streams,
        key=lambda stream: (_fullness(stream), -stream.rank),
        default=None,
    )


def subject_of(
    run: Run, worst: Forecast | None, rank: int | None, device: str | None
) -> tuple[int | None, str | None]:
    """Return the rank and device that the page is about.

    That's the requested one, or the one that ran out of memory, or is forecast to; None for any.
    """
    if rank is not None or device is not None:
        return rank, device
    deaths = [event.rank for event in run.events if event.kind == "oom"]
    if run.status == "oom":
        return (deaths[0] if deaths else None), None
    if run.status == "running" and worst is not None and worst.level != "ok":
        return worst.rank, worst.device
    return None, None


def warning_steps(incidents: Sequence[Incident], first: Forecast | None) -> list[int]:
    """Return the step of the first warning, and those of later ones if it was averted.

    They are those of the newest incident, and of averted ones right before it. Without incidents
    it's that of `first`, the newest launch's first paging forecast: without it nothing was warned
    of.
    """
    if first is None:
        return []
    steps: list[int] = []
    for incident in filter(_has_warned, incidents):
        if steps and incident.state != "averted":
            break  # of an earlier launch
        steps.append(first_step_of(incident.alerts) or 0)
    return sorted(steps) or [first.step]


def _has_warned(incident: Incident) -> bool:
    is_forecast = incident.rule == "oom_forecast" and incident.severity != "note"
    return is_forecast and incident.state not in ("ok", "pending")


def stream_of(streams: Sequence[Stream], forecast: Forecast | None) -> Stream | None:
    """Return the stream that a forecast is about."""
    return next((item for item in streams if forecast and _of_stream([forecast], item)), None)


def scalars_only(run: Run) -> Stream | None:
    """Return the scalars of an ended run that has nothing else, as another tracker's may be."""
    current = [item for item in run.streams if item.is_current]
    has_memory = any(item.kind != "scalars" for item in current)
    return None if has_memory or run.status == "running" else next(iter(current), None)


def chart_facts(
    run: Run,
    stream: Stream,
    newest: Sequence[Forecast],
    first_warning: Forecast | None,
    predicted_peak_bytes: int | None,
) -> JsonObject:
    """Return everything that the chart draws besides the series.

    `run` is a result of GET /runs/{id}, `newest` has the newest forecasts of all streams, and
    `first_warning` is this stream's.
    """
    return {
        "rank": stream.rank,
        "device": stream.device,
        "kind": stream.kind,
        "first_step": stream.first_step,
        "last_step": stream.last_step,
        "limit_bytes": stream.limit_bytes,
        "predicted_peak_bytes": predicted_peak_bytes,
        "is_running": run.status == "running",
        "forecast": drawn_forecast(
            run.status, next(iter(_of_stream(newest, stream)), None), first_warning
        ),
        "phases": rare_phases(stream),
        "markers": markers(
            # a script's alerts are about the run, not about a device
            [
                *_of_stream(run.alerts, stream),
                *(alert for alert in run.alerts if alert.rule == SCRIPT.name),
            ],
            [event for event in run.events if event.rank == stream.rank],
        ),
    }


def rare_phases(stream: Stream) -> list[str]:
    """Return phases that aren't part of every step, such as eval: the chart marks their steps."""
    rare = [phase for name in stream.latest if (phase := phase_of(name)) and phase not in PHASES]
    return sorted(rare, key=lambda phase: (phase not in ("eval", "checkpoint"), phase))[:MAX_PHASES]


def stacked_components(stream: Stream) -> list[str]:
    """Return the components of the stacked chart, with `other` for the rest; empty if the agent
    reads none.

    A GPU's CUDA context is outside the allocator; on a host it's part of the process's memory.
    """
    latest, on_host = stream.latest, stream.kind == "host"
    if latest.get("peak_allocated_bytes") is None:
        return []
    names = [
        name
        for name in STACKED
        if latest.get(f"{name}_bytes") is not None and (on_host or name != "context")
    ]
    return [name for name in STACKED if name in names or name == "other"] if names else []


def drawn_forecast(
    status: RunStatus, newest: Forecast | None, first_warning: Forecast | None
) -> JsonObject | None:
    """Return a running run's newest forecast, or a failed run's first warning for comparison."""
    forecast = {"running": newest, "oom": first_warning, "lost_contact": first_warning}.get(status)
    if forecast is None or forecast.level == "ok" or forecast.eta_step is None:
        return None
    return {name: getattr(forecast, name) for name in _FORECAST_FIELDS}


def markers(alerts: Sequence[Alert], events: Sequence[RunEvent]) -> list[JsonObject]:
    """Return the chart's vertical lines: alerts that fired or were averted, and agent events."""
    lines: list[JsonObject] = [
        {"step": change.step, "label": _label_of(alert, change), "tone": _tone_of(alert, change)}
        for alert in alerts
        for change in _marked_changes(alert)
    ]
    for event in events:
        if event.kind not in _HIDDEN_EVENTS:
            tone = "critical" if event.kind == "oom" else "plain"
            label = "out of memory" if event.kind == "oom" else humanize(event.kind)
            lines.append({"step": step_of(event), "label": label, "tone": tone})
    distinct = {(marker["step"], marker["label"]): marker for marker in lines}
    return sorted(distinct.values(), key=lambda marker: int(marker["step"]))[-MAX_MARKERS:]


def _marked_changes(alert: Alert) -> Iterator[Transition]:
    """Yield where an alert began to fire, got worse and, unless it is a note, was averted."""
    worst = -1
    for change in alert.transitions:
        if change.to_state == "firing":
            severity = SEVERITIES.index(change.severity)
            if change.from_state != "firing" or severity > worst:
                yield change
            worst = max(worst, severity)
        elif change.to_state == "averted" != change.from_state and alert.severity != "note":
            yield change
            worst = -1


def _tone_of(alert: Alert, change: Transition) -> str:
    if change.to_state == "averted":
        return "ok"
    return "plain" if alert.severity == "note" else change.severity


def _label_of(alert: Alert, change: Transition) -> str:
    fires = change.to_state == "firing"
    if alert.rule == SCRIPT.name:
        title = str(alert.data.get("title", ""))[:MAX_CAUSE_LENGTH]
        return title if fires else f"{title}: over"
    if alert.severity == "note":
        return humanize(alert.rule)
    return change.severity if fires else "averted"


def listed_events(events: Sequence[RunEvent]) -> list[RunEvent]:
    """Return what a run's page lists, newest first: of diagnoses only how the newest one stands."""
    newest = next((event for event in events if event.kind == "diagnosis"), None)
    return [
        event
        for event in events
        if event.kind not in _UNLISTED_EVENTS and (event.kind != "diagnosis" or event is newest)
    ]


def step_of(event: RunEvent) -> int:
    """Return an event's step: of an OOM the one that failed, else the last completed."""
    return event.step + 1 if event.kind == "oom" else event.step


def event_details(event: RunEvent) -> list[tuple[str, str]]:
    """Return an event's data as pairs.

    An OOM's long values are in its report; of a preflight only the verdict is shown, and of a
    diagnosis its text.
    """
    data = event.data
    if event.kind == "diagnosis" and data.get("text"):
        return [("", str(data["text"]))]
    if event.kind == SCRIPT_ALERT and data.get("title"):
        return [("", str(data["title"]))]
    if event.kind == "preflight" and data.get("verdict"):
        return [("", str(data["verdict"]).removeprefix("preflight: "))]
    if event.kind != "oom":
        return pairs(data)
    return [
        _short_pair(key, value)
        for key, value in data.items()
        if not isinstance(value, Mapping | list) and key != "error"
    ]


def _short_pair(key: str, value: Any) -> tuple[str, str]:
    """Return (`asked`, `8.0 MiB`) for asked_bytes: exact bytes don't help to understand an OOM."""
    if key.endswith("_bytes") and (value is None or type(value) in (int, float)):
        return humanize(key.removesuffix("_bytes")), format_bytes(value)
    return humanize(key), plain(value)


def pairs(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten a nested mapping to (dotted key, text), at most MAX_PAIRS of them."""
    return [pair for pair, _ in zip(_pairs(values, prefix), range(MAX_PAIRS), strict=False)]


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
    """Return a value as text: a dash if it's missing, yes or no for a boolean."""
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compared_row(name: str, row: ComparedResidual, largest: int) -> ComparedRow:
    return ComparedRow(
        name=name,
        predicted=format_bytes(row.predicted_bytes),
        observed=format_bytes(row.observed_bytes),
        residual=signed_bytes(row.residual_bytes),
        tone=residual_tone(row.residual_bytes, row.predicted_bytes),
        predicted_width=percent_of(row.predicted_bytes, largest),
        observed_width=percent_of(row.observed_bytes, largest),
        note=_note(row),
    )


def _note(row: ComparedResidual) -> str | None:
    """Return the likely reason of a residual, or the interval of a level."""
    if not isinstance(row, LevelResidual):
        return f"Likely: {row.reason}." if row.reason else None
    if row.low_bytes is None or row.high_bytes is None:
        return None
    text = f"90 % interval: {byte_range(row.low_bytes, row.high_bytes)}"
    if row.is_within is not False:
        return text
    return (
        f"{text}; this run is {'above' if (row.observed_bytes or 0) > row.low_bytes else 'below'}"
    )


def _of_stream(items: Iterable[OfStream], stream: Stream) -> list[OfStream]:
    return [item for item in items if (item.rank, item.device) == (stream.rank, stream.device)]


def _fullness(stream: Stream) -> float:
    peak, limit = stream.peak_bytes, stream.limit_bytes
    return peak / limit if peak and limit else 0.0
