"""The data of the compare page.

Pure functions: a result of GET /compare in, rows of text and widths out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from memagent.units import format_bytes, format_step_time
from memagent.wire.fields import COMPONENTS
from memagent_server.compare.components import OTHER_TENSORS
from memagent_server.schemas.predictions import ComponentResidual
from memagent_server.schemas.runs import ComparedRun
from memagent_server.web.bars import BarPart, bar_parts, residual_tone
from memagent_server.web.labels import Badge, count, duration_between, signed_bytes, status_badge
from memagent_server.web.view_models import plain

TONES = 10
"""The number of distinct colors of runs. Further runs reuse them with dashed lines."""
_MAX_PERCENT = 1_000_000
_UNKNOWN = "–"
CURVES = (
    ("peak_allocated_bytes", "Peak within the step"),
    ("allocated_bytes", "Allocated after the step"),
    ("reserved_bytes", "Reserved by the allocator"),
    ("device_used_bytes", "Device used, all processes"),
    ("step_s", "Seconds per step"),
)


@dataclass(frozen=True)
class ComparedRunView:
    """A run of the comparison. `others` lists the ids of the other runs.

    The letter names it in tables and bars, where colors are those of components.
    """

    id: str
    name: str
    project: str
    badge: Badge
    letter: str
    tone: int
    is_dashed: bool
    others: str


@dataclass(frozen=True)
class Cell:
    """A value, with a note below it, usually the difference from the first run."""

    text: str
    note: str = ""
    tone: str = "plain"


@dataclass(frozen=True)
class ComponentBar:
    """A run's components end to end, in per cent of the largest run's sum."""

    parts: Sequence[BarPart]
    sum: str


def compared_runs(runs: Sequence[ComparedRun]) -> list[ComparedRunView]:
    """Return the runs with the colors that identify them on the whole page."""
    ids = [run.id for run in runs]
    return [
        ComparedRunView(
            id=run.id,
            name=run.name,
            project=run.project,
            badge=status_badge(run.status),
            letter=ascii_uppercase[place],
            tone=place % TONES,
            is_dashed=place >= TONES,
            others=",".join(other for other in ids if other != run.id),
        )
        for place, run in enumerate(runs)
    ]


def differing(differences: Mapping[str, Sequence[Any]]) -> list[tuple[str, list[str]]]:
    """Return (key, the value of each run as text)."""
    return [(key, [_text(value) for value in values]) for key, values in differences.items()]


def figure_rows(runs: Sequence[ComparedRun], now: float) -> list[list[Cell]]:
    """Return the device, sizes, residual, step time, steps and duration of each run."""
    return [_figures(run, runs[0], now) for run in runs]


def _figures(run: ComparedRun, first: ComparedRun, now: float) -> list[Cell]:
    ranks = f"{run.world_size} ranks" if run.world_size > 1 else ""
    total_steps = f"of {count(run.total_steps)}" if run.total_steps else ""
    residual, predicted = run.residual_bytes, run.predicted_peak_bytes
    started_at = run.started_at or run.created_at
    return [
        Cell(run.device_name or _UNKNOWN, ranks),
        Cell(format_bytes(run.peak_bytes), _peak_difference(run, first)),
        Cell(format_bytes(run.limit_bytes)),
        _headroom(run),
        Cell(format_bytes(predicted)),
        Cell(signed_bytes(residual), tone=residual_tone(residual, predicted)),
        Cell(format_step_time(run.step_s), _step_time_change(run, first)),
        Cell(count(run.step), total_steps),
        Cell(duration_between(started_at, run.finished_at, now)),
    ]


def shared_device(rows: Sequence[Sequence[Cell]]) -> str | None:
    """Return the device of the figures if all runs have the same: a column would say nothing.

    "" for runs without a device.
    """
    devices = {(row[0].text, row[0].note) for row in rows}
    if len(devices) != 1:
        return None
    return ", ".join(text for text in devices.pop() if text not in ("", _UNKNOWN))


def component_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, list[Cell]]]:
    """Return (component, cells) rows: the observed size, with the predicted one as its note."""
    tables = [{row.component: row for row in _components(run)} for run in runs]
    names = (*COMPONENTS, OTHER_TENSORS)
    return [
        (name, [_component(table.get(name)) for table in tables])
        for name in names
        if any(name in table for table in tables)
    ]


def bars(runs: Sequence[ComparedRun]) -> list[ComponentBar]:
    """Return each run's components as one bar, predicted ones if none were observed."""
    sizes = [_sizes(_components(run)) for run in runs]
    whole = max((sum(parts.values()) for parts in sizes), default=0) or 1
    return [
        ComponentBar(bar_parts(parts, whole), format_bytes(sum(parts.values())) if parts else "–")
        for parts in sizes
    ]


def curves(runs: Sequence[ComparedRun]) -> list[tuple[str, str]]:
    """Return (name, title) of each curve: memory, and the scalars that at least one run logs."""
    scalars = sorted({name for run in runs for name in run.scalars})
    return [*CURVES, *((f"scalar:{name}", name) for name in scalars)]


def chart_facts(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return the input of the page's script for each run."""
    names = (
        "id",
        "name",
        "rank",
        "attempt",
        "device",
        "first_step",
        "last_step",
        "limit_bytes",
        "scalars",
        "tokens_scalar",
    )
    return [
        {
            **{name: getattr(run, name) for name in names},
            "tone": place % TONES,
            "dashed": place >= TONES,
        }
        for place, run in enumerate(runs)
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "–"
    return plain(value)


def _components(run: ComparedRun) -> list[ComponentResidual]:
    return run.components.components if run.components else []


def _peak_difference(run: ComparedRun, first: ComparedRun) -> str:
    if run is first or run.peak_bytes is None or first.peak_bytes is None:
        return ""
    difference = run.peak_bytes - first.peak_bytes
    return signed_bytes(difference) if difference else "the same"


def _step_time_change(run: ComparedRun, first: ComparedRun) -> str:
    if run is first or not run.step_s or not first.step_s:
        return ""
    percent = round(min(100 * (run.step_s / first.step_s - 1), _MAX_PERCENT))
    return f"{percent:+} %".replace("-", "−") if percent else "the same"


def _headroom(run: ComparedRun) -> Cell:
    headroom, limit = run.headroom_bytes, run.limit_bytes
    if headroom is None or not limit:
        return Cell("–")
    share = headroom / limit
    tone = "critical" if share < 0.02 else "warning" if share < 0.1 else "plain"
    return Cell(
        format_bytes(headroom).replace("-", "−"), f"{100 * share:.0f} %".replace("-", "−"), tone
    )


def _component(row: ComponentResidual | None) -> Cell:
    if row is None:
        return Cell("–")
    predicted = row.predicted_bytes
    note = f"predicted {format_bytes(predicted)}" if predicted is not None else ""
    return Cell(
        format_bytes(row.observed_bytes), note, residual_tone(row.residual_bytes, predicted)
    )


def _sizes(rows: Sequence[ComponentResidual]) -> dict[str, int]:
    is_observed = any(row.observed_bytes is not None for row in rows)
    sizes = {
        row.component: row.observed_bytes if is_observed else row.predicted_bytes for row in rows
    }
    return {component: size for component, size in sizes.items() if size}
