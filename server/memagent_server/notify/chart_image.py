"""Chart of the memory curve as a PNG: usage, limit, forecast and predicted peak.

The extra `plot` installs matplotlib. Without it messages have no chart, and the log says so once.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import logging
from typing import Any

from memagent.units import GIB, MIB, format_bytes
from memagent_server.notify.channel import AlertMessage, MemoryCurve
from memagent_server.notify.message_text import truncate

log = logging.getLogger(__name__)

SIZE_INCHES = (8.0, 4.0)
DPI = 140
MIN_POINTS = 3
MAX_FORECAST_WIDTH = 1.5
"""Width of the forecast relative to that of the past."""
LABEL_GAP_RATIO = 0.07
"""Share of the limit within which a label goes below its line, to avoid overlap."""

_USED = "#2563eb"
_DEVICE = "#94a3b8"
_LIMIT = "#dc2626"
_FORECAST = "#f59e0b"
_PREDICTED = "#059669"
_INK = "#1f2937"
_GRID = "#e5e7eb"


class ChartImage:
    """Renders messages that have a memory curve."""

    @property
    def is_possible(self) -> bool:
        return _has_matplotlib()

    def render(self, message: AlertMessage) -> bytes | None:
        """Return a PNG, or None if there is nothing to draw, or no matplotlib."""
        curve = message.curve
        if curve is None or len(curve.steps) < MIN_POINTS or not self.is_possible:
            return None
        try:
            return draw(message, curve)
        except Exception:
            log.exception("the chart of run %s could not be drawn", message.run_id)
            return None


def draw(message: AlertMessage, curve: MemoryCurve) -> bytes:
    """Return the chart as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white", layout="constrained")
    axes: Any = figure.add_subplot()
    unit, name = _unit(message, curve)
    limit = message.facts.get("limit_bytes")
    if limit:
        axes.axhline(limit / unit, color=_LIMIT, linewidth=1.8)
        _draw_label(axes, limit / unit, f"limit {format_bytes(limit)}", _LIMIT)
    if message.predicted_peak_bytes:
        axes.axhline(
            message.predicted_peak_bytes / unit,
            color=_PREDICTED,
            linewidth=1.4,
            linestyle=(0, (6, 3)),
        )
        below = (
            limit is not None
            and abs(limit - message.predicted_peak_bytes) < LABEL_GAP_RATIO * limit
        )
        _draw_label(
            axes,
            message.predicted_peak_bytes / unit,
            f"predicted peak {format_bytes(message.predicted_peak_bytes)}",
            _PREDICTED,
            at_right=True,
            below=below,
        )
    _draw_line(
        axes,
        curve.steps,
        curve.device_used_bytes,
        unit,
        color=_DEVICE,
        linewidth=1.2,
        label="whole device",
    )
    _draw_line(
        axes, curve.steps, curve.used_bytes, unit, color=_USED, linewidth=2.0, label="this run"
    )
    last = _draw_forecast(axes, message, unit)
    _draw_frame(axes, message, curve, name, max(last, curve.steps[-1]), unit)
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    buffer = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(buffer)
    return buffer.getvalue()


def _draw_forecast(axes: Any, message: AlertMessage, unit: int) -> float:
    """Draw the forecast from now to the limit, as wide as its interval; return its last step."""
    facts = message.facts
    step, used, limit = facts.get("step"), facts.get("used_bytes"), facts.get("limit_bytes")
    if message.to_state != "firing":
        if message.to_state == "oom":
            axes.axvline(
                message.step, color=_LIMIT, linewidth=1.6, linestyle=":", label="out of memory"
            )
        return float(message.step)
    if not (step is not None and used and limit and facts.get("eta_step") is not None):
        return float(message.step)
    early, middle, late = (
        float(facts[key] if facts.get(key) is not None else facts["eta_step"])
        for key in ("eta_low", "eta_step", "eta_high")
    )
    axes.fill(
        [step, early, late],
        [used / unit, limit / unit, limit / unit],
        color=_FORECAST,
        alpha=0.25,
        linewidth=0,
    )
    axes.plot(
        [step, middle],
        [used / unit, limit / unit],
        color=_FORECAST,
        linewidth=1.8,
        linestyle=(0, (4, 2)),
        label="forecast",
    )
    axes.plot(
        [middle],
        [limit / unit],
        marker="o",
        markersize=6,
        color=_FORECAST,
        markeredgecolor="white",
        zorder=5,
    )
    return late


def _draw_frame(
    axes: Any, message: AlertMessage, curve: MemoryCurve, unit_name: str, last: float, unit: int
) -> None:
    first = curve.steps[0]
    longest = first + (curve.steps[-1] - first + 1) * (1 + MAX_FORECAST_WIDTH)
    axes.set_xlim(first, max(min(last, longest) * 1.01, first + 1))
    sizes = [size for size in (*curve.used_bytes, *curve.device_used_bytes) if size is not None]
    sizes += [
        size for size in (message.facts.get("limit_bytes"), message.predicted_peak_bytes) if size
    ]
    axes.set_ylim(0, 1.12 * max(sizes, default=1) / unit)
    rank = f", rank {message.rank}" if message.world_size > 1 and message.rank is not None else ""
    axes.set_title(
        truncate(f"{message.run_name}{rank}", 70),
        loc="left",
        fontsize=13,
        fontweight="bold",
        pad=10,
        color=_INK,
    )
    axes.set_xlabel("step", fontsize=11, color=_INK)
    axes.set_ylabel(unit_name, fontsize=11, color=_INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelsize=10, colors=_INK, length=0)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_line(
    axes: Any, steps: tuple[int, ...], sizes: tuple[int | None, ...], unit: int, **style: Any
) -> None:
    points = [
        (step, size / unit) for step, size in zip(steps, sizes, strict=True) if size is not None
    ]
    if points:
        axes.plot(
            [step for step, _ in points],
            [size for _, size in points],
            solid_capstyle="round",
            **style,
        )


def _draw_label(
    axes: Any, height: float, text: str, color: str, *, at_right: bool = False, below: bool = False
) -> None:
    """Write a label at an end of a horizontal line, a little above or below it."""
    axes.annotate(
        text,
        (float(at_right), height),
        xycoords=("axes fraction", "data"),
        xytext=(-6 if at_right else 6, -4 if below else 4),
        textcoords="offset points",
        ha="right" if at_right else "left",
        va="top" if below else "bottom",
        fontsize=10,
        color=color,
        fontweight="bold",
    )


def _unit(message: AlertMessage, curve: MemoryCurve) -> tuple[int, str]:
    largest = max(
        [message.facts.get("limit_bytes") or 0, *(size or 0 for size in curve.used_bytes)]
    )
    return (GIB, "GiB") if largest >= GIB else (MIB, "MiB")


@functools.cache
def _has_matplotlib() -> bool:
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    log.warning("messages have no charts: pip install 'memagent[plot]' adds them")
    return False
