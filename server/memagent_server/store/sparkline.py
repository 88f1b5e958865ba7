"""The course of a stream's memory in a few figures, kept with its row so that a list of runs reads no samples. Pure.

1. Figure i is the most that samples i * width to (i + 1) * width read, in order of arrival.
2. Where there are more than POINTS of them, neighbours are joined and the width doubles: a run of any length has POINTS / 2 to POINTS.
3. It is kept as {"width": samples a figure, "peaks": [bytes or null]}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memagent.wire.columns import Value

POINTS = 32
COLUMNS = ("peak_allocated_bytes", "allocated_bytes", "device_used_bytes")


def extended(
    kept: Mapping[str, Any], before: int, columns: Mapping[str, Sequence[Value]]
) -> dict[str, Any]:
    """`kept` with the samples of `columns`, which come after `before` others."""
    values = _memory(columns)
    width, peaks = int(kept.get("width", 1)), list(kept.get("peaks", ()))
    while before + len(values) > POINTS * width:
        peaks = [_most(peaks[place : place + 2]) for place in range(0, len(peaks), 2)]
        width *= 2
    first = before // width
    peaks += [None] * (first - len(peaks))  # samples that were taken in before this was kept
    for place in range(first, -(-(before + len(values)) // width)):
        peak = _most(values[max(0, place * width - before) : (place + 1) * width - before])
        if place == len(peaks):
            peaks.append(peak)
        else:
            peaks[place] = _most([peaks[place], peak])
    return {"width": width, "peaks": peaks}


def _memory(columns: Mapping[str, Sequence[Value]]) -> Sequence[Value]:
    """What memory is read from: the peak within the step where there is one."""
    known = (columns[name] for name in COLUMNS if name in columns)
    return next((values for values in known if any(value is not None for value in values)), ())


def _most(values: Sequence[Value]) -> int | None:
    known = [value for value in values if value is not None]
    return int(max(known)) if known else None
