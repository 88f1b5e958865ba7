"""A packed chunk as numpy arrays: all its columns of a kind at once, ten times as fast as `memagent.wire.columns.unpack`.

The layout is that module's; a test reads the same chunks with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, ChunkHeader, Column, Value, read_payload
from memagent.wire.fields import Kind


@dataclass(frozen=True)
class Block:
    """The columns of one kind: `values` [columns, rows] of int64 or float64, `present` the same of bool, None where nothing is missing."""

    names: list[str]
    values: NDArray[Any]
    present: NDArray[np.bool_] | None

    def column(self, name: str) -> NDArray[Any]:
        """Its values; what is missing holds anything."""
        values: NDArray[Any] = self.values[self.names.index(name)]
        return values

    def has_all(self, name: str) -> bool:
        """Whether each row has a value of the column."""
        return self.present is None or bool(self.present[self.names.index(name)].all())

    def has_any(self, name: str) -> bool:
        return self.present is None or bool(self.present[self.names.index(name)].any())

    @cached_property
    def known(self) -> NDArray[np.bool_] | None:
        """Which values are there and finite, None where all are."""
        if self.values.dtype.kind == "i":
            return self.present
        finite = np.isfinite(self.values)
        if self.present is not None:
            finite &= self.present
        return None if finite.all() else finite

    def odd(self) -> dict[str, float]:
        """{column: the first of its values that is there and not finite}"""
        if self.known is None:
            return {}
        wrong: NDArray[np.bool_] = (
            ~self.known if self.present is None else self.present & ~self.known
        )
        rows = np.argmax(wrong, axis=1)
        values = self.values[np.arange(len(rows)), rows]
        return {
            name: float(value)
            for name, value, bad in zip(self.names, values, wrong, strict=True)
            if bad.any()
        }


@dataclass(frozen=True)
class Arrays:
    """A chunk's samples by the kind of their columns. The columns' kinds and order are the header's."""

    header: ChunkHeader
    ints: Block
    floats: Block


def read_arrays(packed: bytes) -> Arrays:
    """The columns of a chunk. Raises WireError for anything but a whole and sound one, and for ints out of bounds."""
    header, raw = read_payload(packed)
    rows, columns = header.rows, header.columns
    payload, present = _parted(raw, columns, rows)
    moved = np.ascontiguousarray(payload.reshape(-1, 8, rows).transpose(0, 2, 1)).view("<i8")[
        :, :, 0
    ]
    ints, floats = _of_kind(columns, "int"), _of_kind(columns, "float")
    whole = np.add.accumulate(moved[ints], axis=1)
    bits = np.bitwise_xor.accumulate(moved[floats], axis=1)
    _check_bounds(whole, [columns[index].name for index in ints])
    return Arrays(
        header,
        Block([columns[index].name for index in ints], whole, _rows_of(present, ints)),
        Block(
            [columns[index].name for index in floats], bits.view("<f8"), _rows_of(present, floats)
        ),
    )


def stats_of(arrays: Arrays) -> dict[str, list[Value]]:
    """Minimum, maximum and last of every column, as `chunks.Stats` has them."""
    found = {**_stats(arrays.ints), **_stats(arrays.floats)}
    return {column.name: found[column.name] for column in arrays.header.columns}


def newest_values(arrays: Arrays) -> dict[str, Value]:
    """The last value of each column that is not missing; what is not finite reads None."""
    found = {**_newest(arrays.ints), **_newest(arrays.floats)}
    return {column.name: found[column.name] for column in arrays.header.columns}


def _of_kind(columns: list[Column], kind: Kind) -> list[int]:
    return [index for index, column in enumerate(columns) if column.kind == kind]


def _rows_of(present: NDArray[np.bool_] | None, indexes: list[int]) -> NDArray[np.bool_] | None:
    if present is None:
        return None
    of_kind: NDArray[np.bool_] = present[indexes]
    return None if of_kind.all() else of_kind


def _parted(
    raw: bytes, columns: list[Column], rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None]:
    """The payload without its bitmaps, and the bitmaps as bools [columns, rows]."""
    payload = np.frombuffer(raw, np.uint8)
    if not any(column.has_missing for column in columns):
        return payload, None
    present = np.ones((len(columns), rows), np.bool_)
    parts = []
    bitmap_bytes, column_bytes, at = (rows + 7) // 8, rows * 8, 0
    for index, column in enumerate(columns):
        if column.has_missing:
            bits = np.unpackbits(payload[at : at + bitmap_bytes], count=rows, bitorder="little")
            present[index] = bits.view(np.bool_)
            at += bitmap_bytes
        parts.append(payload[at : at + column_bytes])
        at += column_bytes
    return np.concatenate(parts), present


def _check_bounds(ints: NDArray[Any], names: list[str]) -> None:
    """A sum of differences that leaves 64 bits comes out beyond MAX_INT too, as long as the one before it did not."""
    if ints.size == 0 or (ints.max() < MAX_INT and ints.min() > -MAX_INT):
        return
    wrong = names[int(np.argmax(((ints >= MAX_INT) | (ints <= -MAX_INT)).any(axis=1)))]
    raise WireError(
        f"{wrong} must hold values of less than 2**62 in magnitude", field=f"columns.{wrong}"
    )


def _stats(block: Block) -> dict[str, list[Value]]:
    if not block.names:
        return {}
    values, known = block.values, block.known
    if known is None:
        return _listed(block.names, values.min(axis=1), values.max(axis=1), values[:, -1])
    lowest, highest = _extremes(values.dtype)
    least, most = (
        np.where(known, values, highest).min(axis=1),
        np.where(known, values, lowest).max(axis=1),
    )
    found = _listed(block.names, least, most, values[:, -1])
    for index, name in enumerate(block.names):
        if not known[index].any():
            found[name] = [None, None, None]
        elif not known[index, -1]:
            found[name][2] = None
    return found


def _listed(names: list[str], *figures: NDArray[Any]) -> dict[str, list[Value]]:
    return {
        name: list(of)
        for name, *of in zip(names, *(figure.tolist() for figure in figures), strict=True)
    }


def _newest(block: Block) -> dict[str, Value]:
    if not block.names:
        return {}
    columns, rows = block.values.shape
    at = np.full(columns, rows - 1)
    if block.present is not None:
        at -= np.argmax(block.present[:, ::-1], axis=1)
    here = np.arange(columns)
    found = block.values[here, at].tolist()
    if block.known is None:
        return dict(zip(block.names, found, strict=True))
    is_known = block.known[
        here, at
    ].tolist()  # a row without any value is at its last one, which is not known
    return {
        name: value if known else None
        for name, value, known in zip(block.names, found, is_known, strict=True)
    }


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "i":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf
