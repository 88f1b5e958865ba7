"""Sample columns into a forecaster, row by row: the same on the server and in the process.

1. A row is an optimizer step, so its number says how many of them there were: the row of step 0 is taken before the first. Where rows are
   something else, as batches whose gradients are summed up, a column `optimizer_steps` beats that.
2. The phase of a row is the one that made its peak. Where that is no part of training (OTHERS: its column `phase_NAME_peak_bytes` is
   above all of the step's own) the row says nothing of what a training step takes. Phases of other names are the script's own parts of
   its step. A column `phase` beats that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
}
"""Sample column -> argument of `Forecaster.update`."""
OTHERS = ("eval", "evaluation", "val", "validation", "test", "checkpoint", "save", "preflight")
"""Phases that are no part of a training step."""
_PREFIX, _SUFFIX = "phase_", "_peak_bytes"
_OTHERS = {f"{_PREFIX}{name}{_SUFFIX}": name for name in OTHERS}


class _Watched:
    """The columns that `feed` looks at, for whoever would not decode the others."""

    def __contains__(self, name: object) -> bool:
        return name in _ROW or (
            isinstance(name, str) and name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )


_ROW = frozenset(("step", "phase", "optimizer_steps", *READINGS))
FORECAST_COLUMNS = _Watched()


def feed_columns(
    forecaster: Forecaster, columns: Mapping[str, Sequence[Any]]
) -> Iterator[Forecast]:
    """The forecast after each row of consecutive samples; `columns` are named as on the wire, `step` among them."""
    readings = {argument: columns[name] for name, argument in READINGS.items() if name in columns}
    phases = columns.get("phase") or _phases(columns)
    taken = columns.get("optimizer_steps")
    for row, number in enumerate(columns["step"]):
        step = int(number or 0)
        yield forecaster.update(
            step,
            phase=phases[row] if phases else "train",
            optimizer_steps=taken[row] if taken else step,
            **{argument: column[row] for argument, column in readings.items()},
        )


def _phases(columns: Mapping[str, Sequence[Any]]) -> list[str] | None:
    """Whose peak each row's is, or None where all are training's."""
    others = [name for name in columns if name in _OTHERS]
    if not others:
        return None
    own = [
        columns[name]
        for name in columns
        if name not in _OTHERS and name.startswith(_PREFIX) and name.endswith(_SUFFIX)
    ]
    return [_phase(columns, others, own, row) for row in range(len(columns["step"]))]


def _phase(
    columns: Mapping[str, Sequence[Any]],
    others: Sequence[str],
    own: Sequence[Sequence[Any]],
    row: int,
) -> str:
    name = max(others, key=lambda other: columns[other][row] or 0)
    peak = columns[name][row] or 0
    highest = max((column[row] or 0 for column in own), default=0)
    if (
        not highest and "peak_allocated_bytes" in columns
    ):  # recorded with phases=False: only the whole step's is known
        highest = (columns["peak_allocated_bytes"][row] or 0) - 1
    return _OTHERS[name] if peak > highest else "train"
