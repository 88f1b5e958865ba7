"""Feed sample columns to a forecaster, row by row: the same on the server and in the process.

1. A row is an optimizer step, so its number says how many there were: the row of step 0 is taken
   before the first. A column `optimizer_steps` overrides this, for rows that are batches whose
   gradients accumulate.
2. The phase of a row is the one that made its peak. A row isn't a training step's if the column
   `phase_NAME_peak_bytes` of a phase in OTHER_PHASES is above those of the step's own phases.
   Phases of other names are parts of the script's step. A column `phase` overrides this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from memagent.forecast.forecaster import Forecaster
from memagent.forecast.types import Forecast

READINGS = {
    "time_s": "time_s",
    "allocated_bytes": "allocated_bytes",
    "peak_allocated_bytes": "peak_allocated_bytes",
    "reserved_bytes": "reserved_bytes",
    "inactive_split_bytes": "inactive_split_bytes",
    "alloc_retries_total": "alloc_retries",
    "device_used_bytes": "device_used_bytes",
    "host_rss_bytes": "host_used_bytes",
    "input_size": "input_size",
    "limit_bytes": "limit_bytes",
    "host_limit_bytes": "host_limit_bytes",
}
"""Argument of `Forecaster.update` by sample column."""
OTHER_PHASES = (
    *("eval", "evaluation", "val", "validation", "test"),
    *("checkpoint", "save", "preflight"),
)
"""Phases that aren't part of a training step."""
_SIZES = tuple(argument for argument in READINGS.values() if argument.endswith("_bytes"))
_LIMITS = ("limit_bytes", "host_limit_bytes")
_PREFIX = "phase_"
_SUFFIX = "_peak_bytes"
_OTHER_PHASE_BY_COLUMN = {f"{_PREFIX}{name}{_SUFFIX}": name for name in OTHER_PHASES}


def _is_phase_peak(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


class _ForecastColumns:
    """The columns that `feed_columns` reads, so that a caller needn't decode others."""

    _names = frozenset(("step", "phase", "optimizer_steps", *READINGS))

    def __contains__(self, name: object) -> bool:
        return name in self._names or (isinstance(name, str) and _is_phase_peak(name))


FORECAST_COLUMNS = _ForecastColumns()


def feed_columns(
    forecaster: Forecaster, columns: Mapping[str, Sequence[Any]]
) -> Iterator[Forecast]:
    """Yield the forecast after each row of consecutive samples.

    `columns` have the wire's names, `step` among them.
    """
    rows = _Rows(forecaster, columns)
    for row in range(len(rows.steps)):
        yield rows.update(row)


def feed_repetitions(
    forecaster: Forecaster, columns: Mapping[str, Sequence[Any]]
) -> Iterator[Forecast]:
    """Yield the same, but while all is calm, one forecast for consecutive rows that are alike.

    Their sizes differ by less than matters to the forecaster. It's the forecast of the last one.
    """
    rows = _Rows(forecaster, columns)
    row = 0
    while row < len(rows.steps):
        count = rows.count_alike(row, forecaster.max_count, forecaster.tolerance_bytes) or 1
        row += count
        yield rows.update(row - 1, count)


class _Rows:
    """Consecutive samples of one device, to be fed to its forecaster."""

    def __init__(self, forecaster: Forecaster, columns: Mapping[str, Sequence[Any]]) -> None:
        self.steps = [int(number or 0) for number in columns["step"]]
        self._forecaster = forecaster
        self._readings = {
            argument: columns[name] for name, argument in READINGS.items() if name in columns
        }
        phases = columns.get("phase") or _phases(columns)
        self._readings["phase"] = phases or ["train"] * len(self.steps)
        self._readings["optimizer_steps"] = columns.get("optimizer_steps") or self.steps

    @cached_property
    def _all(self) -> list[tuple[Any, ...]]:
        """The readings of each row."""
        return [*zip(*self._readings.values(), strict=True)]

    @cached_property
    def _sizes(self) -> list[tuple[Any, ...]]:
        """The sizes of each row, limits apart."""
        return self._rows(lambda argument: argument in _SIZES and argument not in _LIMITS)

    @cached_property
    def _others(self) -> list[tuple[Any, ...]]:
        """The other readings of each row, without step and time."""
        return self._rows(lambda argument: argument not in _SIZES or argument in _LIMITS)

    def _rows(self, is_selected: Callable[[str], bool]) -> list[tuple[Any, ...]]:
        selected = [
            column
            for argument, column in self._readings.items()
            if is_selected(argument) and argument != "time_s" and column is not self.steps
        ]
        return [*zip(*selected, strict=True)] if selected else [()] * len(self.steps)

    def count_alike(self, row: int, most: int, tolerance: float) -> int:
        """Return how many rows from `row` on, at most so many, are like the row before it."""
        if row == 0 or most <= 1:
            return 0
        end, sizes, others, steps = row, self._sizes, self._others, self.steps
        old_sizes, old_others = sizes[row - 1], others[row - 1]
        while (
            end < min(len(steps), row + most)
            and others[end] == old_others
            and (sizes[end] == old_sizes or _are_close(sizes[end], old_sizes, tolerance))
            and steps[end] > steps[end - 1]
        ):
            end += 1
        return end - row

    def update(self, row: int, count: int = 1) -> Forecast:
        """Return the forecast after `row`, the last of so many that are alike."""
        readings = dict(zip(self._readings, self._all[row], strict=True))
        return self._forecaster.update(self.steps[row], count=count, **readings)


def _are_close(sizes: Sequence[Any], others: Sequence[Any], tolerance: float) -> bool:
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= tolerance)
        for a, b in zip(sizes, others, strict=True)
    )


def select_columns(
    columns: Mapping[str, Sequence[Any]], *, is_secondary_host: bool
) -> Mapping[str, Sequence[Any]]:
    """Return the columns for a forecaster that was made with `is_secondary_host`."""
    if not is_secondary_host or "allocated_bytes" not in columns:
        return columns
    names = ("step", "time_s", "phase", "limit_bytes")
    selected = {name: columns[name] for name in names if name in columns}
    if "limit_bytes" in columns:
        selected["host_limit_bytes"] = columns["limit_bytes"]
    # On a host, `allocated_bytes` is what counts against its limit.
    return {**selected, "host_rss_bytes": columns["allocated_bytes"]}


def _phases(columns: Mapping[str, Sequence[Any]]) -> list[str] | None:
    """Return the phase of each row's peak, or None if all are training's."""
    others = [name for name in columns if name in _OTHER_PHASE_BY_COLUMN]
    if not others:
        return None
    own = [
        values
        for name, values in columns.items()
        if name not in _OTHER_PHASE_BY_COLUMN and _is_phase_peak(name)
    ]
    return [_phase(columns, others, own, row) for row in range(len(columns["step"]))]


def _phase(
    columns: Mapping[str, Sequence[Any]],
    others: Sequence[str],
    own: Sequence[Sequence[Any]],
    row: int,
) -> str:
    # a missing value is None
    name = max(others, key=lambda other: columns[other][row] or 0)
    peak = columns[name][row] or 0
    highest = max((column[row] or 0 for column in own), default=0)
    if not highest and "peak_allocated_bytes" in columns:
        # Recorded with phases=False: only the whole step's peak is known.
        highest = max(0, (columns["peak_allocated_bytes"][row] or 0) - 1)
    return _OTHER_PHASE_BY_COLUMN[name] if peak > highest else "train"
