"""Sample columns into a forecaster, row by row: the same on the server and in the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memagent.forecast.answer import Forecast
from memagent.forecast.forecaster import Forecaster

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
    "phase": "phase",
    "optimizer_steps": "optimizer_steps",
}
"""Sample column -> argument of `Forecaster.update`."""


def feed(forecaster: Forecaster, columns: Mapping[str, Sequence[Any]]) -> Iterator[Forecast]:
    """The forecast after each row of consecutive samples; `columns` are named as on the wire, `step` among them."""
    readings = {argument: columns[name] for name, argument in READINGS.items() if name in columns}
    for row, step in enumerate(columns["step"]):
        yield forecaster.update(int(step or 0), **{argument: column[row] for argument, column in readings.items()})
