"""Buckets: minimum, maximum and last of every column over consecutive samples. Pure functions.

1. A column is an array [3, buckets] of int64 or float64. A missing value is one that no reading can
   have: -2**63, or NaN.
2. Packed, each column is zstd of its byte-shuffled values: a chart of four columns unpacks four.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import zstandard

from memagent.arrays.chunk_arrays import Array, Mask
from memagent.wire.columns import Value
from memagent_server.store.chunks import Stats

_ZSTD_LEVEL = 9
_MISSING = -(2**63)
_MAX_INT64 = 2**63 - 1


class _PackedBuckets(msgspec.Struct, array_like=True):
    seqs: bytes
    rows: bytes
    columns: dict[str, tuple[str, bytes]]
    """{name: (`i` or `f`, values)}"""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_PackedBuckets)


@dataclass(frozen=True)
class Buckets:
    """Buckets: `seqs` are the positions of their last samples, `rows` their numbers of samples."""

    seqs: Array
    rows: Array
    stats: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def samples(self) -> int:
        return int(self.rows.sum())

    def column(self, name: str) -> Array:
        """Return minimum, maximum and last of a column; all missing for an unknown column."""
        column = self.stats.get(name)
        return np.full((3, len(self)), _MISSING, np.int64) if column is None else column

    def pick(self, index: Any) -> Buckets:
        """Return the buckets at an index: a slice, an array of positions, or a mask."""
        stats = {name: column[:, index] for name, column in self.stats.items()}
        return Buckets(self.seqs[index], self.rows[index], stats)

    def each(self) -> Iterator[tuple[int, int, Stats]]:
        """Yield (seq, rows, stats) of each bucket."""
        columns = {name: as_lists(column) for name, column in self.stats.items()}
        pairs = zip(self.seqs.tolist(), self.rows.tolist(), strict=True)
        for index, (seq, rows) in enumerate(pairs):
            stats = {name: [values[index] for values in three] for name, three in columns.items()}
            yield seq, rows, stats


EMPTY = Buckets(np.empty(0, np.int64), np.empty(0, np.int64), {})


def from_stats(chunks: Iterable[tuple[int, int, Stats]]) -> Buckets:
    """Return a bucket for each (seq, rows, stats)."""
    chunks = list(chunks)
    names = dict.fromkeys(name for _, _, stats in chunks for name in stats)
    missing: list[Value] = [None, None, None]
    return Buckets(
        np.array([seq for seq, _, _ in chunks], np.int64),
        np.array([rows for _, rows, _ in chunks], np.int64),
        {name: _array([stats.get(name, missing) for _, _, stats in chunks]).T for name in names},
    )


def from_samples(
    seq: int, columns: Mapping[str, tuple[Array, Mask | None]], begin: int, end: int, size: int
) -> Buckets:
    """Divide rows `begin` to `end` (exclusive) of a chunk ending at `seq` into buckets."""
    rows = len(next(iter(columns.values()))[0])
    starts = np.arange(begin, end, size)
    if not len(starts):
        return EMPTY
    stops = np.minimum(starts + size, end)
    stats = {}
    for name, (values, present) in columns.items():
        marked = _mark_missing(values[begin:end], None if present is None else present[begin:end])
        stats[name] = _reduce(marked, starts - begin, of_samples=True)
    return Buckets(seq - rows + stops, stops - starts, stats)


def chunk_stats(columns: Mapping[str, tuple[Array, Mask | None]]) -> Stats:
    """Return the statistics of a whole chunk."""
    rows = len(next(iter(columns.values()))[0])
    _, _, stats = next(from_samples(rows - 1, columns, 0, rows, rows).each())
    return stats


def chain(parts: Sequence[Buckets]) -> Buckets:
    """Concatenate buckets. A column that is a float in any part is one in the result."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    stats = {}
    for name in dict.fromkeys(name for part in parts for name in part.stats):
        columns = [part.column(name) for part in parts]
        if len({column.dtype for column in columns}) > 1:
            columns = [_as_float(column) for column in columns]
        stats[name] = np.concatenate(columns, axis=1)
    return Buckets(
        np.concatenate([part.seqs for part in parts]),
        np.concatenate([part.rows for part in parts]),
        stats,
    )


def merge_groups(buckets: Buckets, starts: Array) -> Buckets:
    """Merge groups of neighbors that begin at `starts`."""
    ends = np.append(starts[1:], len(buckets)) - 1
    return Buckets(
        buckets.seqs[ends],
        np.add.reduceat(buckets.rows, starts),
        {name: _reduce(column, starts) for name, column in buckets.stats.items()},
    )


def halve(buckets: Buckets) -> Buckets:
    """Merge pairs of neighbors; an odd last bucket stays alone."""
    return merge_groups(buckets, np.arange(0, len(buckets), 2))


def merge_to(buckets: Buckets, max_buckets: int) -> Buckets:
    """Merge neighbors to at most `max_buckets` buckets of about equal numbers of samples."""
    if len(buckets) <= max_buckets:
        return buckets
    samples_before = np.cumsum(buckets.rows) - buckets.rows
    # by samples, since buckets of different levels differ in size
    groups = samples_before * max_buckets // buckets.samples
    return merge_groups(buckets, np.flatnonzero(np.diff(groups, prepend=-1)))


def as_lists(values: Array) -> list[Any]:
    """Return an array as (nested) lists, None for missing values."""
    missing = np.isnan(values) if values.dtype.kind == "f" else values == _MISSING
    if missing.any():
        # None fits in an array of objects only
        values = values.astype(object)
        values[missing] = None
    lists: list[Any] = values.tolist()
    return lists


def pack_buckets(buckets: Buckets) -> bytes:
    columns = {
        name: (str(column.dtype.kind), _compress(column)) for name, column in buckets.stats.items()
    }
    return _encode(_PackedBuckets(_compress(buckets.seqs), _compress(buckets.rows), columns))


def unpack_buckets(packed: bytes, only: Collection[str] | None = None) -> Buckets:
    """Return the buckets of `pack_buckets`; with `only`, just these columns."""
    block = _decoder.decode(packed)
    decompressor = zstandard.ZstdDecompressor()

    def decompress(data: bytes, kind: str = "i") -> Array:
        shuffled = np.frombuffer(decompressor.decompress(data), np.uint8)
        return np.ascontiguousarray(shuffled.reshape(8, -1).T).view(f"<{kind}8")[:, 0]

    stats = {
        name: decompress(data, kind).reshape(3, -1)
        for name, (kind, data) in block.columns.items()
        if only is None or name in only
    }
    return Buckets(decompress(block.seqs), decompress(block.rows), stats)


def _compress(values: Array) -> bytes:
    # all first bytes, all second bytes ...: neighbors are similar, so their high bytes repeat
    shuffled = np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8).T.tobytes()
    packed: bytes = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(shuffled)
    return packed


def _array(values: list[list[Value]]) -> Array:
    is_float = any(isinstance(value, float) for three in values for value in three)
    missing = float("nan") if is_float else _MISSING
    rows = [[missing if value is None else value for value in three] for three in values]
    return np.array(rows, np.float64 if is_float else np.int64).reshape(-1, 3)


def _mark_missing(values: Array, present: Mask | None) -> Array:
    """Replace values that are missing or not finite."""
    if values.dtype.kind == "f":
        is_present = np.isfinite(values) if present is None else np.isfinite(values) & present
        return values if is_present.all() else np.where(is_present, values, np.nan)
    return values if present is None else np.where(present, values, _MISSING)


def _reduce(values: Array, starts: Array, *, of_samples: bool = False) -> Array:
    """Return minimum, maximum and last over groups of buckets [3, n], or of samples [n].

    The last value of a group of buckets is the last that isn't missing; of samples, the last one.
    """
    low, high, last = (values, values, values) if of_samples else values
    is_float = values.dtype.kind == "f"
    ends = np.append(starts[1:], low.shape[-1]) - 1
    if is_float:  # fmin and fmax ignore NaN
        minima = np.fmin.reduceat(low, starts)
        maxima = np.fmax.reduceat(high, starts)
    else:
        # the mark for missing is the lowest integer: it loses each maximum, and would win each
        # minimum
        minima = np.minimum.reduceat(np.where(low == _MISSING, _MAX_INT64, low), starts)
        minima[minima == _MAX_INT64] = _MISSING
        maxima = np.maximum.reduceat(high, starts)
    if not of_samples:
        missing = np.isnan(last) if is_float else last == _MISSING
        if missing.any():
            # the index of the last value in each group, -1 if it has none
            indexes = np.maximum.reduceat(np.where(missing, -1, np.arange(len(last))), starts)
            ends = np.where(indexes >= 0, indexes, ends)
    return np.stack((minima, maxima, last[ends]))


def _as_float(values: Array) -> Array:
    if values.dtype.kind == "f":
        return values
    return np.where(values == _MISSING, np.nan, values.astype(np.float64))
