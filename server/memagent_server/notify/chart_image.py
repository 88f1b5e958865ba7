"""The memory curve as a PNG: what was used, the limit, where the forecast says it will be met, and what was predicted.

matplotlib comes with the extra `plot`; without it there is no picture, and the log says so once.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import logging
from typing import Any

from memagent.units import GIB, MIB, format_bytes
from memagent_server.notify.channel import AlertMessage, Curve
from memagent_server.notify.message_text import cut

log = logging.getLogger(__name__)

SIZE_INCHES, DPI = (8.0, 4.0), 140
FEWEST_POINTS = 3
LONGEST_OUTLOOK = 1.5
"""The future takes at most this many times the width of the past."""

_USED, _DEVICE, _LIMIT, _CONE, _PREDICTED, _INK, _GRID = (
    "#2563eb", "#94a3b8", "#dc2626", "#f59e0b", "#059669", "#1f2937", "#e5e7eb",
)  # fmt: skip


class ChartImage:
    """Draws stories that bring a curve along."""

    @property
    def is_possible(self) -> bool:
        return _has_matplotlib()

    def of(self, story: AlertMessage) -> bytes | None:
        """A PNG, or None where there is nothing to draw or nothing to draw with."""
        if story.curve is None or len(story.curve.steps) < FEWEST_POINTS or not self.is_possible:
            return None
        try:
            return draw(story, story.curve)
        except Exception:
            log.exception("the picture of run %s could not be drawn", story.run_id)
            return None


def draw(story: AlertMessage, curve: Curve) -> bytes:
    """The picture itself."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white", layout="constrained")
    axes: Any = figure.add_subplot()
    unit, name = _unit(story, curve)
    limit = story.facts.get("limit_bytes")
    if limit:
        axes.axhline(limit / unit, color=_LIMIT, linewidth=1.8)
        _label(axes, limit / unit, f"limit {format_bytes(limit)}", _LIMIT)
    if story.predicted_peak_bytes:
        axes.axhline(
            story.predicted_peak_bytes / unit,
            color=_PREDICTED,
            linewidth=1.4,
            linestyle=(0, (6, 3)),
        )
        below = limit is not None and abs(limit - story.predicted_peak_bytes) < 0.07 * limit
        _label(
            axes,
            story.predicted_peak_bytes / unit,
            f"predicted peak {format_bytes(story.predicted_peak_bytes)}",
            _PREDICTED,
            at_right=True,
            below=below,
        )
    _line(
        axes,
        curve.steps,
        curve.device_used_bytes,
        unit,
        color=_DEVICE,
        linewidth=1.2,
        label="whole device",
    )
    _line(axes, curve.steps, curve.used_bytes, unit, color=_USED, linewidth=2.0, label="this run")
    last = _cone(axes, story, unit)
    _frame(axes, story, curve, name, max(last, curve.steps[-1]), unit)
    figure.legend(loc="outside upper right", ncols=4, fontsize=10, frameon=False)
    buffer = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(buffer)
    return buffer.getvalue()


def _cone(axes: Any, story: AlertMessage, unit: int) -> float:
    """The forecast from now to the limit, as wide as its interval; returns the last step it takes up."""
    facts = story.facts
    step, used, limit = facts.get("step"), facts.get("used_bytes"), facts.get("limit_bytes")
    if story.to_state != "firing":
        if story.to_state == "oom":
            axes.axvline(story.step, color=_LIMIT, linewidth=1.6, linestyle=":", label="died here")
        return float(story.step)
    if not (step is not None and used and limit and facts.get("eta_step") is not None):
        return float(story.step)
    early, middle, late = (
        float(facts[key] if facts.get(key) is not None else facts["eta_step"])
        for key in ("eta_low", "eta_step", "eta_high")
    )
    axes.fill(
        [step, early, late],
        [used / unit, limit / unit, limit / unit],
        color=_CONE,
        alpha=0.25,
        linewidth=0,
    )
    axes.plot(
        [step, middle],
        [used / unit, limit / unit],
        color=_CONE,
        linewidth=1.8,
        linestyle=(0, (4, 2)),
        label="forecast",
    )
    axes.plot(
        [middle],
        [limit / unit],
        marker="o",
        markersize=6,
        color=_CONE,
        markeredgecolor="white",
        zorder=5,
    )
    return late


def _frame(
    axes: Any, story: AlertMessage, curve: Curve, unit_name: str, last: float, unit: int
) -> None:
    first = curve.steps[0]
    longest = first + (curve.steps[-1] - first + 1) * (1 + LONGEST_OUTLOOK)
    axes.set_xlim(first, max(min(last, longest) * 1.01, first + 1))
    sizes = [size for size in (*curve.used_bytes, *curve.device_used_bytes) if size is not None]
    sizes += [size for size in (story.facts.get("limit_bytes"), story.predicted_peak_bytes) if size]
    axes.set_ylim(0, 1.12 * max(sizes, default=1) / unit)
    rank = f", rank {story.rank}" if story.world_size > 1 and story.rank is not None else ""
    axes.set_title(
        cut(f"{story.run_name}{rank}", 70),
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


def _line(
    axes: Any, steps: tuple[int, ...], sizes: tuple[int | None, ...], unit: int, **style: Any
) -> None:
    known = [
        (step, size / unit) for step, size in zip(steps, sizes, strict=True) if size is not None
    ]
    if known:
        axes.plot(
            [step for step, _ in known],
            [size for _, size in known],
            solid_capstyle="round",
            **style,
        )


def _label(
    axes: Any, height: float, words: str, color: str, *, at_right: bool = False, below: bool = False
) -> None:
    """Words at an end of a horizontal line, a little above or below it."""
    axes.annotate(
        words, (float(at_right), height), xycoords=("axes fraction", "data"), xytext=(-6 if at_right else 6, -4 if below else 4),
        textcoords="offset points", ha="right" if at_right else "left", va="top" if below else "bottom",
        fontsize=10, color=color, fontweight="bold",
    )  # fmt: skip


def _unit(story: AlertMessage, curve: Curve) -> tuple[int, str]:
    largest = max([story.facts.get("limit_bytes") or 0, *(size or 0 for size in curve.used_bytes)])
    return (GIB, "GiB") if largest >= GIB else (MIB, "MiB")


@functools.cache
def _has_matplotlib() -> bool:
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    log.warning("messages come without pictures: pip install 'memagent[plot]' brings them")
    return False
