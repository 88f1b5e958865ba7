"""Points of many scalars, and the rows of the scalars stream that they become.

1. A point is a step, a time and a value. Points of a step share a row; a scalar that has several
   values in a step has several rows.
2. Rows are sorted by step, then by time: that is the order of the wire format.
3. A block of rows has at most BLOCK_CELLS values and gaps. Scalars that are logged at different
   steps would otherwise make a table of nothing but gaps.
4. An extent is how much of a scalar an earlier import had: the number of its first points, as the
   source has them, and their checksum. Blocks leave these out.
"""

from __future__ import annotations

import heapq
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import gt, itemgetter

from memagent.sampling.scalars import MAX_NAMES
from memagent.wire.columns import Value
from memagent.wire.fields import COLUMN_NAME

POINT_LIMIT = 20_000_000
"""Limit for a run: half a gigabyte, at 24 bytes each."""
NAME_CHARACTERS = 1_000
"""Limit for a name in the source."""
BLOCK_CELLS = 200_000
BLOCK_ROWS = 10_000
ROW_VALUES = 400
BLOCK_NAMES = 900
"""Columns of a block. SQLite and the server's batches have limits of a few thousand."""
END_STEP = 2**53
END_TIME_S = 1e12
_RESERVED_NAMES = ("step", "time_s")
_COLUMN_CHARACTERS = 128
_INVALID = re.compile(r"[^\w./@ -]")

PointColumns = dict[str, list[Value]]
Extent = tuple[int, int]
"""Number of first points, and their CRC-32."""
_Point = tuple[int, int, float, int, float]
"""Step, number among those of its scalar in the step, time, the scalar's index, value."""


class ScalarTable:
    """Points in memory: 24 bytes each. `left_out` counts those that can't be stored, by reason."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.renamed: dict[str, str] = {}
        """Column by the source's name, if they differ."""
        self.last_time_s = 0.0
        self._series: dict[str, _Series] = {}
        self._columns: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of points."""
        return self._count

    @property
    def names(self) -> list[str]:
        """Return the source's names, in the order of their first points."""
        return list(self._series)

    @property
    def last_step(self) -> int:
        return max((max(series.steps) for series in self._series.values()), default=0)

    def add(self, name: str, step: int, time_s: float, value: float) -> None:
        """Add a point, unless its step or name can't be stored.

        An impossible time is replaced by that of the point before.
        """
        series = self._series.get(name)
        if not 0 <= step < END_STEP:
            self.left_out["points with a negative or huge step"] += 1
            return
        if self._count >= POINT_LIMIT:
            self.left_out[f"points after the first {POINT_LIMIT:,}"] += 1
            return
        if series is None:
            series = self._admit(name)
            if series is None:
                return
        if not 0 <= time_s < END_TIME_S:
            time_s = series.times[-1] if series.times else 0.0
        self.last_time_s = max(self.last_time_s, time_s)
        series.steps.append(step)
        series.times.append(time_s)
        series.values.append(value)
        self._count += 1

    def merge(self, other: ScalarTable, *, name: str | None = None) -> None:
        """Add another table's points, under `name` if it's given."""
        for own_name, series in other._series.items():
            for point in zip(series.steps, series.times, series.values, strict=True):
                self.add(name or own_name, *point)
        self.left_out += other.left_out

    def extents(self) -> dict[str, Extent]:
        """Return the extent of each scalar, by the source's name."""
        return {name: series.extent(len(series.steps)) for name, series in self._series.items()}

    def extends(self, extents: Mapping[str, Extent]) -> bool:
        """Return True if all points of the extents are still the first of their scalars."""
        return all(
            name in self._series and self._series[name].extent(extent[0]) == extent
            for name, extent in extents.items()
        )

    def clock(self) -> tuple[list[float], list[int]]:
        """Return times and steps of the scalar with most points; both increase."""
        longest = max(self._series.values(), key=lambda item: len(item.steps), default=_Series(""))
        times, steps, highest = list[float](), list[int](), 0
        for time_s, step in sorted(zip(longest.times, longest.steps, strict=True)):
            highest = max(highest, step)
            times.append(time_s)
            steps.append(highest)
        return times, steps

    def blocks(self, known: Mapping[str, Extent] | None = None) -> Iterator[PointColumns]:
        """Yield blocks of rows as columns, without known points: `step`, `time_s`, the scalars."""
        block: list[tuple[int, float, dict[str, float]]] = []
        names: dict[str, None] = {}
        for row in self._rows(known or {}):
            added = sum(name not in names for name in row[2])
            width = len(names) + added
            is_full = len(block) >= BLOCK_ROWS or width > BLOCK_NAMES
            if block and (is_full or (len(block) + 1) * width > BLOCK_CELLS):
                yield _columns(block, names)
                block, names = [], {}
            block.append(row)
            if added or not names:
                names.update(dict.fromkeys(row[2]))
        if block:
            yield _columns(block, names)

    def _rows(self, known: Mapping[str, Extent]) -> Iterator[tuple[int, float, dict[str, float]]]:
        columns = [series.column for series in self._series.values()]
        points = (
            series.points(index, known.get(name, (0, 0))[0])
            for index, (name, series) in enumerate(self._series.items())
        )
        for (step, _), group in groupby(heapq.merge(*points), key=itemgetter(0, 1)):
            values: dict[str, float] = {}
            time_s = 0.0
            for _, _, point_time_s, index, value in group:
                if len(values) >= ROW_VALUES:
                    yield step, time_s, values
                    values = {}
                values[columns[index]] = value
                time_s = point_time_s
            yield step, time_s, values

    def _admit(self, name: str) -> _Series | None:
        if len(name) > NAME_CHARACTERS:
            self.left_out[f"points of names over {NAME_CHARACTERS:,} characters"] += 1
            return None
        if len(self._series) >= MAX_NAMES:
            self.left_out[f"points of scalars after the first {MAX_NAMES:,}"] += 1
            return None
        column = self._free_column(name)
        if column != name:
            self.renamed[name] = column
        self._columns.add(column)
        series = self._series[name] = _Series(column)
        return series

    def _free_column(self, name: str) -> str:
        """Return a valid column name that no other scalar has."""
        base = _INVALID.sub("_", name)[:_COLUMN_CHARACTERS] or "_"
        if not COLUMN_NAME.fullmatch(base) or base in _RESERVED_NAMES:
            base = f"_{base}"[:_COLUMN_CHARACTERS]
        column, number = base, 1
        while column in self._columns:
            number += 1
            ending = f"_{number}"
            column = base[: _COLUMN_CHARACTERS - len(ending)] + ending
        return column


class _Series:
    """Points of one scalar, as the source has them."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.steps = array("q")
        self.times = array("d")
        self.values = array("d")

    def extent(self, count: int) -> Extent:
        """Return the extent of the first `count` points, of fewer if there are fewer."""
        checksum = 0
        for items in (self.steps, self.times, self.values):
            # a view, since a slice would copy up to 160 MB
            checksum = zlib.crc32(memoryview(items)[:count], checksum)
        return min(count, len(self.steps)), checksum

    def points(self, index: int, known: int) -> Iterator[_Point]:
        """Yield all points but the first `known`, by step and time."""
        order: range | list[int] = range(known, len(self.steps))
        if not self._is_sorted(known):
            order = sorted(order, key=lambda at: (self.steps[at], self.times[at]))
        last_step, number = -1, 0
        for at in order:
            step = self.steps[at]
            number = number + 1 if step == last_step else 0
            last_step = step
            yield step, number, self.times[at], index, self.values[at]

    def _is_sorted(self, begin: int) -> bool:
        pairs = zip(self.steps[begin:], self.times[begin:], strict=True)
        steps, times = self.steps[begin + 1 :], self.times[begin + 1 :]
        return not any(map(gt, pairs, zip(steps, times, strict=True)))


def _columns(
    rows: list[tuple[int, float, dict[str, float]]], names: dict[str, None]
) -> PointColumns:
    columns: PointColumns = {"step": [row[0] for row in rows], "time_s": [row[1] for row in rows]}
    for name in names:
        columns[name] = [row[2].get(name) for row in rows]
    return columns


def to_float(value: object) -> float | None:
    """Return a number or a text of one as a float; None for anything else."""
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def to_step(value: object) -> int:
    """Return a step, or -1 for what is none."""
    number = to_float(value)
    return int(number) if number is not None and math.isfinite(number) else -1
