"""Chunks as they are received: decoded once to numpy arrays, summarized, and stored as they came.

`memagent.arrays.chunk_arrays` decodes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from memagent.arrays.chunk_arrays import ChunkArrays, ColumnBlock, read_arrays
from memagent.errors import WireError
from memagent.wire.columns import ChunkHeader, Value, pack
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import Chunk

Stats = dict[str, list[Value]]
"""{column: [min, max, last]} of finite values; last is None if the last value is missing or not
finite.
"""
_encode_stats = msgspec.msgpack.Encoder().encode
_stats_decoder = msgspec.msgpack.Decoder(Stats)


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
