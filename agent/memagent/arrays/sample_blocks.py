"""Decoded samples of many chunks, joined to one array a column.

Columns may come and go, and change between int and float, from chunk to chunk: a column with a
float anywhere is float throughout, and rows without it are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memagent.arrays.chunk_arrays import Array, Mask
from memagent.arrays.stored_chunks import Columns, unseal_arrays
from memagent.wire.sample_stream import SampleFrame


@dataclass(frozen=True)
class SampleBlock:
    """Consecutive samples of one rank and device in one launch."""

    place: tuple[int, str, int]
    columns: Columns

    @property
    def rows(self) -> int:
        return len(self.columns["step"][0])

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.columns)


def block_of(
    frame: SampleFrame, only: frozenset[str] | None, first: int | None, last: int | None
) -> SampleBlock | None:
    """Decode the samples of a frame in a window of steps; None if there are none."""
    packed = frame.chunk()
    if not packed:
        return None
    columns = unseal_arrays(packed, only)
    steps = columns["step"][0]
    keep: slice | Mask = slice(frame.known_rows, None)
    if first is not None or last is not None:
        keep = np.arange(len(steps)) >= frame.known_rows
        keep &= steps >= (first if first is not None else steps.min())
        keep &= steps <= (last if last is not None else steps.max())
    elif not frame.known_rows:
        return SampleBlock((frame.rank, frame.device, frame.attempt), columns)
    chosen: Columns = {
        name: (values[keep], None if present is None else present[keep])
        for name, (values, present) in columns.items()
    }
    if not len(chosen["step"][0]):
        return None
    return SampleBlock((frame.rank, frame.device, frame.attempt), chosen)


def joined(
    blocks: Sequence[SampleBlock], order: Sequence[str] | None
) -> tuple[dict[str, tuple[Array, Mask | None]], list[str]]:
    """Return the columns of all blocks with the place of each row, and the devices' names.

    `device` holds positions in these names. `order` names the columns; default: all, step and time
    first, then by name.
    """
    names = frozenset[str]().union(*(block.names for block in blocks))
    if order is None:
        first = [name for name in ("step", "time_s") if name in names]
        order = [*first, *sorted(names.difference(first))]
    rows = np.array([block.rows for block in blocks], np.int64)
    devices = list(dict.fromkeys(block.place[1] for block in blocks))
    codes = [devices.index(block.place[1]) for block in blocks]
    ranks, attempts = ([block.place[index] for block in blocks] for index in (0, 2))
    columns: dict[str, tuple[Array, Mask | None]] = {
        "rank": (np.repeat(np.array(ranks, np.int64), rows), None),
        "device": (np.repeat(np.array(codes, np.int32), rows), None),
        "attempt": (np.repeat(np.array(attempts, np.int64), rows), None),
    }
    for name in dict.fromkeys(order):
        columns[name] = _column(name, blocks, rows)
    return columns, devices


def _column(name: str, blocks: Sequence[SampleBlock], rows: Array) -> tuple[Array, Mask | None]:
    total = int(rows.sum())
    parts = [block.columns.get(name) for block in blocks]
    is_float = any(part is not None and part[0].dtype.kind == "f" for part in parts)
    values = np.zeros(total, np.float64 if is_float or not any(parts) else np.int64)
    has_missing = any(part is None or part[1] is not None for part in parts)
    present = np.ones(total, np.bool_) if has_missing else None
    begin = 0
    for part, count in zip(parts, rows.tolist(), strict=True):
        end = begin + count
        if part is not None:
            values[begin:end] = part[0]
        if present is not None and (part is None or part[1] is not None):
            present[begin:end] = False if part is None else part[1]
        begin = end
    return values, present
