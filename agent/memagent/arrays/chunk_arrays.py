"""Packed chunks decoded to numpy arrays, for the server and for readers of whole runs.

Arrays hold all columns of a kind at once, which is ten times as fast as
`memagent.wire.columns.unpack`. The layout is that module's; a test reads the same chunks with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, ChunkHeader, ColumnHeader, Value, read_payload
from memagent.wire.fields import ColumnKind

Array = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnBlock:
    """The columns of one kind: `values` [columns, rows] of int64 or float64, and `present`
    [columns,
    rows], None if no value is missing."""

    names: list[str]
    values: Array
    present: Mask | None

    def column(self, name: str) -> Array:
        """Return a column's values; missing ones are arbitrary."""
        values: Array = self.values[self.names.index(name)]
        return values

    def has_all(self, name: str) -> bool:
        """Return True if every row has a value of the column."""
        return self.present is None or bool(self.present[self.names.index(name)].all())

    def has_any(self, name: str) -> bool:
        """Return True if a row has a value of the column."""
        return self.present is None or bool(self.present[self.names.index(name)].any())

    def listed(self, name: str) -> list[Value]:
        """Return a column's values, None for missing ones."""
        index = self.names.index(name)
        return listed(self.values[index], None if self.present is None else self.present[index])

    @cached_property
    def finite(self) -> Mask | None:
        """The values that are neither missing nor infinite or NaN; None if all are."""
        if self.values.dtype.kind == "i":
            return self.present
        finite = np.isfinite(self.values)
        if self.present is not None:
            finite &= self.present
        return None if finite.all() else finite

    def first_not_finite(self) -> dict[str, float]:
        """Return {column: its first value that is infinite or NaN}."""
        if self.finite is None:
            return {}
        wrong: Mask = ~self.finite if self.present is None else self.present & ~self.finite
        rows = np.argmax(wrong, axis=1)
        values = self.values[np.arange(len(rows)), rows]
        return {
            name: float(value)
            for name, value, is_wrong in zip(self.names, values, wrong, strict=True)
            if is_wrong.any()
        }


@dataclass(frozen=True)
class ChunkArrays:
    """A chunk's columns by kind. The header has their order."""

    header: ChunkHeader
    ints: ColumnBlock
    floats: ColumnBlock


def read_arrays(packed: bytes, header: ChunkHeader | None = None) -> ChunkArrays:
    """Decode a packed chunk. Raises WireError if it's damaged or holds integers out of bounds."""
    header, payload = read_payload(packed, header)
    rows, columns = header.rows, header.columns
    values, present = _split_bitmaps(payload, columns, rows)
    # a column's 8-byte values are stored byte by byte: all first bytes, all second bytes ...
    unshuffled = np.ascontiguousarray(values.reshape(-1, 8, rows).transpose(0, 2, 1))
    differences = unshuffled.view("<i8")[:, :, 0]
    ints, floats = _indexes_of(columns, "int"), _indexes_of(columns, "float")
    # integers are stored as differences, floats as XOR of the bits, each against the row before
    integers = np.add.accumulate(differences[ints], axis=1)
    bits = np.bitwise_xor.accumulate(differences[floats], axis=1)
    int_names = [columns[index].name for index in ints]
    float_names = [columns[index].name for index in floats]
    _check_bounds(integers, int_names)
    return ChunkArrays(
        header,
        ColumnBlock(int_names, integers, _rows_of(present, ints)),
        ColumnBlock(float_names, bits.view("<f8"), _rows_of(present, floats)),
    )


def listed(values: Array, present: Mask | None) -> list[Value]:
    """Return an array as a list, None for missing values."""
    # Python numbers: msgspec and the driver take no numpy scalars
    numbers: list[Value] = values.tolist()
    if present is None:
        return numbers
    pairs = zip(numbers, present.tolist(), strict=True)
    return [number if is_present else None for number, is_present in pairs]


def _indexes_of(columns: list[ColumnHeader], kind: ColumnKind) -> list[int]:
    return [index for index, column in enumerate(columns) if column.kind == kind]


def _rows_of(present: Mask | None, indexes: list[int]) -> Mask | None:
    if present is None:
        return None
    rows: Mask = present[indexes]
    return None if rows.all() else rows


def _split_bitmaps(
    payload: bytes, columns: list[ColumnHeader], rows: int
) -> tuple[NDArray[np.uint8], Mask | None]:
    """Return the payload without its bitmaps, and the bitmaps as a mask [columns, rows]."""
    data = np.frombuffer(payload, np.uint8)
    if not any(map(attrgetter("has_missing"), columns)):
        return data, None
    present = np.ones((len(columns), rows), np.bool_)
    parts = []
    bitmap_bytes, column_bytes, offset = (rows + 7) // 8, rows * 8, 0
    for index, column in enumerate(columns):
        if column.has_missing:
            bitmap = data[offset : offset + bitmap_bytes]
            present[index] = np.unpackbits(bitmap, count=rows, bitorder="little").view(np.bool_)
            offset += bitmap_bytes
        parts.append(data[offset : offset + column_bytes])
        offset += column_bytes
    return np.concatenate(parts), present


def _check_bounds(ints: Array, names: list[str]) -> None:
    """Raise WireError for an integer beyond MAX_INT.

    A sum of differences that overflows 64 bits is beyond MAX_INT at or before the overflow.
    """
    if ints.size == 0 or (ints.max() < MAX_INT and ints.min() > -MAX_INT):
        return
    wrong = names[int(np.argmax(((ints >= MAX_INT) | (ints <= -MAX_INT)).any(axis=1)))]
    raise WireError(
        f"{wrong} must hold values of less than 2**62 in magnitude", field=f"columns.{wrong}"
    )
