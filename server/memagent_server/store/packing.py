"""Compacted chunks: losslessly smaller than chunks as they were sent, each of a good size.

1. The whole chunk is one zstd frame, with its header. zstd's magic number tells it from a chunk as
   it was sent (`MAC1`).
2. `time_s` is nearly the first time plus the sum of the step lengths. If both columns are complete,
   the column `time_s@step_s` replaces it: the difference between the bit patterns of the time and
   of that sum, which changes by a few bits a step.
3. A stream's samples are divided into new chunks. Pure functions.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import zstandard

from memagent.arrays.chunk_arrays import Array, Mask, listed
from memagent.arrays.stored_chunks import (
    DERIVED,
    STEP,
    TIME,
    ZSTD_MAGIC,
    Column,
    Columns,
    decompress,
    expected_times,
    lengths_of,
    unseal_arrays,
)
from memagent.wire.columns import (
    MAGIC,
    MAX_COLUMNS,
    MAX_INT,
    ChunkHeader,
    ColumnHeader,
    Value,
    read_header,
    unpack,
)
from memagent.wire.fields import ColumnKind

ZSTD_LEVEL = 9
"""A third of a millisecond for 512 samples of 27 columns; level 19 takes 20 times that for 10 %
less.
"""
_KINDS: dict[str, ColumnKind] = {"i": "int", "f": "float"}
_encode_header = msgspec.msgpack.Encoder().encode


def seal(columns: Columns) -> bytes:
    """Pack columns of equal length."""
    derived = _derived_times(columns)
    if derived is not None:
        columns = {DERIVED if name == TIME else name: of for name, of in columns.items()}
        columns[DERIVED] = derived, None
    raw = b"".join(part for column in columns.values() for part in _column_bytes(*column))
    steps, _ = columns["step"]
    header = ChunkHeader(
        rows=len(steps),
        columns=[
            ColumnHeader(name, _KINDS[values.dtype.kind], present is not None)
            for name, (values, present) in columns.items()
        ],
        codec="none",
        raw_bytes=len(raw),
        crc32=zlib.crc32(raw),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
    )
    encoded = _encode_header(header)
    chunk = b"".join((MAGIC, len(encoded).to_bytes(4, "little"), encoded, raw))
    packed: bytes = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=False).compress(chunk)
    return packed


def unseal(packed: bytes, *, only: Container[str] | None = None) -> dict[str, list[Value]]:
    """Return the columns of a stored chunk, compacted or not; with `only`, just these.

    Raises WireError for a damaged chunk.
    """
    if packed[:4] != ZSTD_MAGIC:
        return unpack(packed, only=only)  # for few samples, faster than arrays
    return {name: listed(*column) for name, column in unseal_arrays(packed, only).items()}


def kinds_of(packed: bytes) -> dict[str, ColumnKind]:
    """Return {column: int or float} of a stored chunk."""
    kinds = {column.name: column.kind for column in read_header(decompress(packed)).columns}
    return {
        TIME if name == DERIVED else name: "float" if name == DERIVED else kind
        for name, kind in kinds.items()
    }


def _column_bytes(values: Array, present: Mask | None) -> Iterator[bytes]:
    """Yield a column in the layout of `wire.columns`."""
    if present is not None:
        yield np.packbits(present, bitorder="little").tobytes()
        # a missing value repeats the one before it: their difference is 0 and costs nothing
        newest = np.maximum.accumulate(np.where(present, np.arange(len(values)), -1))
        values = np.where(newest >= 0, values[newest], 0)
    bits = values.view(np.int64)
    previous = np.concatenate(([0], bits[:-1]))
    differences = bits ^ previous if values.dtype.kind == "f" else bits - previous
    yield differences.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8).T.tobytes()


def _derived_times(columns: Columns) -> Array | None:
    """Return the differences of `time_s@step_s`, None if the times can't be replaced by them."""
    if TIME not in columns or STEP not in columns or DERIVED in columns:
        return None
    (times, present), lengths = columns[TIME], lengths_of(*columns[STEP])
    # the sum needs every time; a missing length counts as 0 on both sides
    if present is not None or times.dtype.kind != "f" or lengths.dtype.kind != "f":
        return None
    if not (np.isfinite(times).all() and np.isfinite(lengths).all()):
        return None
    differences: Array = times.view(np.int64) - expected_times(times[0], lengths).view(np.int64)
    # integers of a chunk must be less than that: see _check_bounds
    return differences if np.abs(differences).max() < MAX_INT else None


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
        # the usual case, without a pass over all parts
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
