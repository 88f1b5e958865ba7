"""The budget of a rehearsal's peak: a size, or the peak of an earlier report with a tolerance."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from memagent.cli.device_options import size_of
from memagent.errors import MemagentError, SettingError
from memagent.units import format_bytes

_PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class PeakBudget:
    """The highest peak allowed, and the words for it."""

    limit_bytes: int
    name: str

    def check(self, peak_bytes: int) -> None:
        """Raise MemagentError if the peak is higher."""
        if peak_bytes > self.limit_bytes:
            raise MemagentError(
                f"the peak of {format_bytes(peak_bytes)} exceeds {self.name} "
                f"({peak_bytes - self.limit_bytes:,} B too much)"
            )


def budgets_of(fail_over: str | None, baseline: Path | None, tolerance: str) -> list[PeakBudget]:
    """Return the budgets that the options ask for. Raises SettingError."""
    budgets = []
    share = tolerance_of(tolerance)
    if fail_over is not None:
        limit = size_of("--fail-over", fail_over)
        budgets.append(PeakBudget(limit, f"the budget of {format_bytes(limit)}"))
    if baseline:
        peak = baseline_peak(baseline)
        name = f"the {format_bytes(peak)} of {baseline} by more than {tolerance}"
        budgets.append(PeakBudget(int(peak * (1 + share)), name))
    return budgets


def tolerance_of(text: str) -> float:
    """Return 0.02 for `2%`."""
    match = _PERCENTAGE.fullmatch(text.strip())
    if match is None:
        raise SettingError(f"--tolerance {text}: write it as 2%.")
    return float(match[1]) / 100


def baseline_peak(path: Path) -> int:
    """Return the tensors' peak in the report of an earlier rehearsal."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"--baseline {path} cannot be read: {error}") from error
    peak = report.get("peak_allocated_bytes") if isinstance(report, dict) else None
    if not isinstance(peak, int) or report.get("method") != "rehearsal" or not report.get("fits"):
        raise SettingError(f"--baseline {path} is not the report of a rehearsal that fits.")
    return peak
