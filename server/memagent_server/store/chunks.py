"""Chunks as they are received: decoded once to numpy arrays, summarized, and stored as they came.

Arrays hold all columns of a kind at once, which is ten times as fast as
`memagent.wire.columns.unpack`. The layout is that module's; a test reads the same chunks with both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, ChunkHeader, ColumnHeader, Value, pack, read_payload
from memagent.wire.fields import SCALARS_STREAM, ColumnKind, kind_of, scalar_kind_of
from memagent.wire.messages import Chunk

Stats = dict[str, list[Value]]
"""{column: [min, max, last]} of finite values; last is None if the last value is missing or not
finite.
"""
Array = NDArray[Any]
Mask = NDArray[np.bool_]

_encode_stats = msgspec.msgpack.Encoder().encode
_stats_decoder = msgspec.msgpack.Decoder(Stats)


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


@dataclass(frozen=True)
class ReadChunk:
    """A decoded chunk. `packed` is the chunk as received, or packed from columns that came as JSON.

    `newest` is the last value of each column that isn't missing, None if it isn't finite.
    """

    stream: str
    packed: bytes
    arrays: ChunkArrays
    stats: Stats
    newest: dict[str, Value]

    @property
    def header(self) -> ChunkHeader:
        return self.arrays.header

    @property
    def rows(self) -> int:
        return self.header.rows

    @property
    def first_step(self) -> int:
        return int(self.stats["step"][0] or 0)

    @property
    def last_step(self) -> int:
        return int(self.stats["step"][1] or 0)


def read_chunk(chunk: Chunk, header: ChunkHeader | None = None) -> ReadChunk:
    """Decode a chunk, whose header may have been read before.

    Raises WireError whose field is `packed`, `columns` or `columns.NAME`.
    """
    if (chunk.packed is None) == (chunk.columns is None):
        raise WireError("a chunk has either packed or columns", field="columns")
    packed = chunk.packed if chunk.packed is not None else _pack(chunk)
    arrays = read_arrays(packed, header)
    stats = array_stats(arrays)
    if arrays.ints.present is None and arrays.floats.present is None:
        newest = {name: last for name, (_, _, last) in stats.items()}
    else:
        newest = newest_values(arrays)
    return ReadChunk(chunk.stream, packed, arrays, stats, newest)


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


def array_stats(arrays: ChunkArrays) -> Stats:
    """Return the statistics of every column."""
    stats = {**_block_stats(arrays.ints), **_block_stats(arrays.floats)}
    return {column.name: stats[column.name] for column in arrays.header.columns}


def newest_values(arrays: ChunkArrays) -> dict[str, Value]:
    """Return the last value of each column that isn't missing, None if it isn't finite."""
    values = {**_newest(arrays.ints), **_newest(arrays.floats)}
    return {column.name: values[column.name] for column in arrays.header.columns}


def column_stats(columns: Mapping[str, Sequence[Value]]) -> Stats:
    """Return the statistics of columns that are lists."""
    return {name: _list_stats(values) for name, values in columns.items()}


def pack_stats(stats: Stats) -> bytes:
    return _encode_stats(stats)


def unpack_stats(packed: bytes) -> Stats:
    return _stats_decoder.decode(packed)


def listed(values: Array, present: Mask | None) -> list[Value]:
    """Return an array as a list, None for missing values."""
    # Python numbers: msgspec and the driver take no numpy scalars
    numbers: list[Value] = values.tolist()
    if present is None:
        return numbers
    pairs = zip(numbers, present.tolist(), strict=True)
    return [number if is_present else None for number, is_present in pairs]


def _pack(chunk: Chunk) -> bytes:
    columns = chunk.columns or {}
    kinds = scalar_kind_of if chunk.stream == SCALARS_STREAM else kind_of
    try:
        return pack(columns, kind_of=kinds)
    except WireError as error:
        field = f"columns.{error.field}" if error.field in columns else "columns"
        raise WireError(str(error), field=field) from error


def _list_stats(values: Sequence[Value]) -> list[Value]:
    finite = [value for value in values if value is not None and isfinite(value)]
    if not finite:
        return [None, None, None]
    last = values[-1]
    return [min(finite), max(finite), last if last is not None and isfinite(last) else None]


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


def _block_stats(block: ColumnBlock) -> Stats:
    if not block.names:
        return {}
    values, finite = block.values, block.finite
    if finite is None:
        minima, maxima = values.min(axis=1), values.max(axis=1)
    else:
        lowest, highest = _extremes(values.dtype)
        # values that don't count become the extreme that never wins
        minima = np.where(finite, values, highest).min(axis=1)
        maxima = np.where(finite, values, lowest).max(axis=1)
    numbers = (column.tolist() for column in (minima, maxima, values[:, -1]))
    stats: Stats = {name: list(three) for name, *three in zip(block.names, *numbers, strict=True)}
    if finite is not None:
        for index, name in enumerate(block.names):
            if not finite[index].any():
                stats[name] = [None, None, None]
            elif not finite[index, -1]:
                stats[name][2] = None
    return stats


def _newest(block: ColumnBlock) -> dict[str, Value]:
    if not block.names:
        return {}
    columns, rows = block.values.shape
    newest_rows = np.full(columns, rows - 1)
    if block.present is not None:
        # argmax finds the first True, so the rows are reversed
        newest_rows -= np.argmax(block.present[:, ::-1], axis=1)
    indexes = np.arange(columns)
    values = block.values[indexes, newest_rows].tolist()
    if block.finite is None:
        return dict(zip(block.names, values, strict=True))
    # a column without any value points at its last row, which isn't finite
    is_finite = block.finite[indexes, newest_rows].tolist()
    return {
        name: value if is_number else None
        for name, value, is_number in zip(block.names, values, is_finite, strict=True)
    }


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "i":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf
