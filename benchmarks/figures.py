"""Figures and their output: a table for people, the same as JSON for checks."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_RESAMPLES = 1000


@dataclass(frozen=True)
class Figure:
    """One row. `value` is None if nothing was measured, and `note` has the reason; `low` and `high`
    are its 95 % interval.

    A goal is an upper limit, or with `more_is_better` a lower one.
    """

    name: str
    unit: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p99: float | None = None
    goal: float | None = None
    p99_goal: float | None = None
    note: str = ""
    more_is_better: bool = False

    @property
    def met(self) -> bool | None:
        """Compare with the goals. Return None without a goal or a value."""
        pairs = ((self.value, self.goal), (self.p99, self.p99_goal))
        sign = -1 if self.more_is_better else 1
        judged = [
            sign * value <= sign * goal
            for value, goal in pairs
            if value is not None and goal is not None
        ]
        return all(judged) if judged else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def from_samples(
    name: str, unit: str, samples: Sequence[float], *, scale: float = 1.0, **rest: Any
) -> Figure:
    """Return the median of independent samples (blocks, processes) with its bootstrap interval."""
    scaled = [scale * sample for sample in samples]
    low, high = interval(scaled)
    return Figure(name, unit, statistics.median(scaled), low, high, **rest)


def from_times(name: str, seconds: Sequence[float], **rest: Any) -> Figure:
    """Return median and 99th percentile of many single times, in microseconds, without intervals:
    the samples are too many and too alike.
    """
    return Figure(
        name, "us", 1e6 * statistics.median(seconds), p99=1e6 * quantile(seconds, 0.99), **rest
    )


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the medians of resamples of `values` (percentile bootstrap)."""
    source = random.Random(0)
    medians = sorted(
        statistics.median(source.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    )
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]


def table(sections: dict[str, list[Figure]]) -> str:
    """Format the table."""
    rows: list[tuple[str, ...]] = [("", "median", "95 % interval", "p99", "goal", "")]
    for title, figures in sections.items():
        rows.append((f"-- {title}", "", "", "", "", ""))
        rows += [_row(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = (
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:5], widths[1:], strict=True)),
                row[5],
            ]
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _row(figure: Figure) -> tuple[str, ...]:
    spread = (
        ""
        if figure.low is None or figure.high is None
        else f"{_number(figure.low)} .. {_number(figure.high)}"
    )
    goals = [_number(goal) for goal in (figure.goal, figure.p99_goal) if goal is not None]
    if figure.goal is None and figure.p99_goal is not None:
        goals = [f"p99 {goals[0]}"]
    verdict = {True: "met", False: "MISSED", None: ""}[figure.met]
    median = "-" if figure.value is None else f"{_number(figure.value)} {figure.unit}"
    return (
        f"   {figure.name}",
        median,
        spread,
        "" if figure.p99 is None else _number(figure.p99),
        f"{'>=' if figure.more_is_better else '<='} {' / '.join(goals)}" if goals else "",
        "; ".join(text for text in (verdict, figure.note) if text),
    )


def _number(value: float) -> str:
    """Format with three significant digits, without an exponent."""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"
