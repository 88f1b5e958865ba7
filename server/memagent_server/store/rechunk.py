"""Divide a stream's samples into new chunks. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from memagent.wire.columns import MAX_COLUMNS
from memagent_server.store.chunks import Array, Mask
from memagent_server.store.packing import Column, Columns

UNIT_ROWS = 512


@dataclass
class SampleRange:
    """Consecutive samples of a stream; `seq` is the position of the last one.

    Without `parts` it's a chunk that stays as it is.
    """

    parts: list[tuple[Columns, int, int]] = field(default_factory=list)
    """(columns of a source chunk, first row, row after the last one)"""
    rows: int = 0
    seq: int = -1
    received_at: float = 0.0
    is_complete: bool = False
    """True if no sample can be appended."""

    @property
    def is_unchanged(self) -> bool:
        return not self.parts

    def columns(self) -> Columns:
        """Return the columns of all parts together."""
        names = dict.fromkeys(name for columns, _, _ in self.parts for name in columns)
        return {name: self._column(name) for name in names}

    def after(self, seq: int) -> SampleRange:
        """Return the samples after a position inside of a range with one part."""
        ((columns, _, end),) = self.parts
        rows = self.seq - seq
        return SampleRange([(columns, end - rows, end)], rows, self.seq, self.received_at)

    def append(self, source: SampleRange, begin: int, rows: int) -> None:
        """Append `rows` rows of a source chunk from row `begin` on."""
        self.parts.append((source.parts[0][0], begin, begin + rows))
        self.rows += rows
        self.seq = source.seq - source.rows + begin + rows
        self.received_at = source.received_at

    def can_append(self, source: SampleRange, begin: int) -> bool:
        """Return False if the steps would go back, or a column would change its kind."""
        last, _, end = self.parts[-1]
        columns = source.parts[0][0]
        if last["step"][0][end - 1] > columns["step"][0][begin]:
            return False
        if columns.keys() == last.keys():
            return all(columns[name][0].dtype == last[name][0].dtype for name in columns)
        kinds = {name: of[0].dtype for part, _, _ in self.parts for name, of in part.items()}
        is_same = all(kinds.get(name, of[0].dtype) == of[0].dtype for name, of in columns.items())
        return is_same and len({*kinds, *columns}) <= MAX_COLUMNS

    def _column(self, name: str) -> Column:
        """Concatenate a column; rows of a part without it are missing."""
        kind = next(columns[name][0].dtype for columns, _, _ in self.parts if name in columns)
        values: list[Array] = []
        masks: list[Mask] = []
        has_missing = False
        for columns, begin, end in self.parts:
            rows = end - begin
            if name not in columns:
                values.append(np.zeros(rows, kind))
                masks.append(np.zeros(rows, np.bool_))
                has_missing = True
                continue
            part, present = columns[name]
            values.append(part[begin:end])
            masks.append(np.ones(rows, np.bool_) if present is None else present[begin:end])
            has_missing = has_missing or present is not None
        return np.concatenate(values), np.concatenate(masks) if has_missing else None


def rechunk(sources: Iterable[SampleRange]) -> list[SampleRange]:
    """Return ranges of UNIT_ROWS samples.

    A range is shorter before a source that can't be appended, or that stays as it is.
    """
    ranges: list[SampleRange] = []
    current = SampleRange()

    def complete() -> None:
        nonlocal current
        current.is_complete = True
        ranges.append(current)
        current = SampleRange()

    for source in sources:
        begin = 0
        while begin < source.rows:
            if current.rows and (source.is_unchanged or not current.can_append(source, begin)):
                complete()
            if source.is_unchanged:
                source.is_complete = True
                ranges.append(source)
                break
            rows = min(UNIT_ROWS - current.rows, source.rows - begin)
            current.append(source, begin, rows)
            begin += rows
            if current.rows == UNIT_ROWS:
                complete()
    return [*ranges, current] if current.rows else ranges
