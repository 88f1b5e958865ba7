"""Bars and small curves of memory, as widths in per cent. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memagent.units import format_bytes
from memagent_server.schemas.runs import RunSummary
from memagent_server.web.labels import format_part_of, humanize


@dataclass(frozen=True)
class MemoryBar:
    """Widths in per cent of the limit, at most 100; None if unknown."""

    peak: float
    predicted: float | None
    tone: str
    text: str


def memory_bar(run: RunSummary) -> MemoryBar | None:
    """Return a run's peak as a bar within its limit, marked at the prediction, or None."""
    peak, limit = run.peak_bytes, run.limit_bytes
    if peak is None:
        return None
    return MemoryBar(
        peak=percent_of(peak, limit) or 0.0,
        predicted=percent_of(run.predicted_peak_bytes, limit),
        tone=_bar_tone(run),
        text=format_part_of(peak, limit),
    )


@dataclass(frozen=True)
class Sparkline:
    """SVG points of a curve and of the area below it, in a box of 100 by 24."""

    line: str
    area: str


def sparkline(peaks: Sequence[int | None] | None) -> Sparkline | None:
    """Return the curve of memory, scaled to its peak; None if fewer than two values are known."""
    known_peaks = [(place, peak) for place, peak in enumerate(peaks or ()) if peak is not None]
    if len(known_peaks) < 2:
        return None
    (first, _), (last, _) = known_peaks[0], known_peaks[-1]
    largest = max(peak for _, peak in known_peaks) or 1
    points = [
        f"{100 * (place - first) / (last - first):.1f},{23 - 21 * peak / largest:.1f}"
        for place, peak in known_peaks
    ]
    return Sparkline(" ".join(points), " ".join(["0,24", *points, "100,24"]))


def residual_label(run: RunSummary) -> tuple[str, str] | None:
    """Return (text, tone) of a run's peak relative to the predicted one: `+43 %`."""
    peak, predicted = run.peak_bytes, run.predicted_peak_bytes
    if peak is None or not predicted:
        return None
    percent = round(100 * (peak / predicted - 1))
    relative = f"{percent:+,} %".replace("-", "−")
    text = "as predicted" if abs(percent) < 2 else relative
    return text, residual_tone(peak - predicted, predicted)


@dataclass(frozen=True)
class BarPart:
    """One part of a stacked bar: position and width in per cent of the bar's scale."""

    name: str
    tone: str
    text: str
    x: float
    width: float


def bar_parts(sizes: Mapping[str, int], whole: float) -> list[BarPart]:
    """Return components end to end, in per cent of `whole`."""
    parts, x = [], 0.0
    for name, size in sizes.items():
        width = 100 * size / whole
        text = format_bytes(size)
        parts.append(BarPart(humanize(name), name, text, round(x, 2), round(width, 2)))
        x += width
    return parts


def residual_tone(residual: int | None, predicted: int | None) -> str:
    """Return the tone of a residual: over 10 % above is a notice, below is never a problem."""
    if residual is None or not predicted or residual <= 0.1 * predicted:
        return "plain"
    return "warning" if residual > 0.5 * predicted else "notice"


def _bar_tone(run: RunSummary) -> str:
    if run.status == "oom":
        return "critical"
    forecast = run.forecast
    return (
        forecast.level
        if run.status == "running" and forecast and forecast.level != "ok"
        else "plain"
    )


def percent_of(part: float | None, whole: float | None) -> float | None:
    """Return a part in per cent of the whole, from 0 to 100; None if either is unknown."""
    return None if part is None or not whole else round(min(100.0, max(0.0, 100 * part / whole)), 2)
