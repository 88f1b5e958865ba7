"""Four lines at the end of a run: how it ended, its peak, what was noteworthy, where to look.

A run that ran out of memory has printed its report instead. The later runs of a process, as the
trials of a study, need one line if nothing was noteworthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from memagent.diagnostics import display_path, notify_user
from memagent.forecast.types import PAGING_LEVELS
from memagent.lifecycle.run_report import predicted_peak_bytes
from memagent.units import format_bytes

_FULL_RATIO = 0.95
"""Share of the limit from which a peak is noteworthy."""
_MISMATCH_RATIO, _MISMATCH_BYTES = 1.2, 512 * 2**20
"""Peak by prediction, and above it, from which the difference is noteworthy: as in the server's
rule `prediction_mismatch`."""


_printed = count()
"""Summaries that this process has printed."""


def print_closing_summary(
    report: Mapping[str, Any], location: str, roots: Sequence[str], reason: str | None
) -> None:
    """Print a run's summary on stderr."""
    # a fork goes on counting from its parent's number, whose terminal it shares
    is_first = next(_printed) == 0
    notify_user(closing_summary(report, location, roots, reason, is_first=is_first))


def closing_summary(
    report: Mapping[str, Any],
    location: str,
    roots: Sequence[str],
    reason: str | None = None,
    *,
    is_first: bool = True,
) -> str:
    """Return the lines for the result of `Run.report()`. Files are shown relative to `roots`.

    reason: why the run was stopped, if it was. is_first: of the runs of its process.
    """
    steps = report["steps"]
    peak = next(iter(report["peaks"].values()))
    noteworthy = next(_noteworthy(report, peak, roots), None)
    end = f"{report['status']} after {steps:,} step{'' if steps == 1 else 's'}"
    if reason:
        end += f" ({reason})"
    if not is_first and noteworthy is None:
        return f"{end}, peak {_peak_text(report, peak)}; more: {location}"
    return (
        f"{end}\n"
        f"  peak: {_peak_text(report, peak)}\n"
        f"  noteworthy: {noteworthy or 'nothing'}\n"
        f"  more: {location}"
    )


def _peak_text(report: Mapping[str, Any], peak: Mapping[str, Any]) -> str:
    size, limit = peak["peak_allocated_bytes"], peak["limit_bytes"]
    text = format_bytes(size)
    if limit and size is not None:
        text += f" of {format_bytes(limit)} ({100 * size / limit:.0f} %)"
    predicted = predicted_peak_bytes(report)
    return text if predicted is None else f"{text}, predicted {format_bytes(predicted)}"


def _noteworthy(
    report: Mapping[str, Any], peak: Mapping[str, Any], roots: Sequence[str]
) -> Iterator[str]:
    """Yield what is noteworthy, the most important first."""
    for suspect in report["suspects"][:1]:
        rate = suspect["bytes_per_step"]
        growth = f", {format_bytes(rate)} more each step" if rate else ""
        where = f"{display_path(suspect['file'], roots)}:{suspect['line']}"
        yield f"{where} keeps {suspect['holder']}{growth}"
    forecast = report["forecast"]
    if forecast and forecast["level"] in PAGING_LEVELS:
        yield f"it was about to run out of memory (cause: {forecast.get('cause') or 'unknown'})"
    size, limit = peak["peak_allocated_bytes"], peak["limit_bytes"]
    if size and limit and size > _FULL_RATIO * limit:
        yield f"{format_bytes(max(0, limit - size))} were left at the peak"
    predicted = predicted_peak_bytes(report)
    if size and predicted and size > max(_MISMATCH_RATIO * predicted, predicted + _MISMATCH_BYTES):
        yield f"the peak was {size / predicted:.1f} times the prediction"
    dropped = sum(report["dropped_samples"].values())
    if dropped:
        yield f"{dropped:,} samples were dropped"
