"""Buckets: minimum, maximum and last of every column over consecutive samples, kept as columns. Pure: values in, values out.

1. A column is an array [3, buckets] of int64 or float64. What is missing is a number that no reading can be: -2**63, or NaN.
2. Packed, each column is zstd of its byte-shuffled values, so that a chart of four columns unpacks four.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from memagent.wire.columns import Value
from memagent_server.store.chunks import Stats

Array = NDArray[Any]

_LEVEL = 9
_MISSING = -(2**63)
_HIGHEST = 2**63 - 1


class _Packed(msgspec.Struct, array_like=True):
    seqs: bytes
    rows: bytes
    columns: dict[str, tuple[str, bytes]]
    """{name: (`i` or `f`, values)}"""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Packed)


@dataclass(frozen=True)
class Buckets:
    """`seqs` is the place of the last sample of each bucket, `rows` how many it holds."""

    seqs: Array
    rows: Array
    stats: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def samples(self) -> int:
        return int(self.rows.sum())

    def of(self, name: str) -> Array:
        """Minimum, maximum and last; a column that is not there is missing throughout."""
        found = self.stats.get(name)
        return np.full((3, len(self)), _MISSING, np.int64) if found is None else found

    def pick(self, places: Any) -> Buckets:
        """The buckets at these places, in this order: a slice, indexes, or which of them."""
        return Buckets(
            self.seqs[places],
            self.rows[places],
            {name: of[:, places] for name, of in self.stats.items()},
        )

    def each(self) -> Iterator[tuple[int, int, Stats]]:
        """(seq, rows, stats) of one bucket after the other."""
        columns = {name: listed(of) for name, of in self.stats.items()}
        for place, (seq, rows) in enumerate(
            zip(self.seqs.tolist(), self.rows.tolist(), strict=True)
        ):
            yield (
                seq,
                rows,
                {name: [values[place] for values in three] for name, three in columns.items()},
            )


EMPTY = Buckets(np.empty(0, np.int64), np.empty(0, np.int64), {})


def gather(parts: Iterable[tuple[int, int, Stats]]) -> Buckets:
    """Buckets from (seq, rows, stats) of each."""
    found = list(parts)
    names = dict.fromkeys(name for _, _, stats in found for name in stats)
    nothing: list[Value] = [None, None, None]
    return Buckets(
        np.array([seq for seq, _, _ in found], np.int64),
        np.array([rows for _, rows, _ in found], np.int64),
        {name: _array([stats.get(name, nothing) for _, _, stats in found]).T for name in names},
    )


def cut(
    seq: int,
    columns: Mapping[str, tuple[Array, NDArray[np.bool_] | None]],
    begin: int,
    end: int,
    size: int,
) -> Buckets:
    """Buckets of `size` samples of those from `begin` to before `end` of a chunk whose last sample has the place `seq`."""
    rows = len(next(iter(columns.values()))[0])
    starts = np.arange(begin, end, size)
    if not len(starts):
        return EMPTY
    stops = np.minimum(starts + size, end)
    stats = {
        name: _over(
            _marked(values[begin:end], None if there is None else there[begin:end]),
            starts - begin,
            whole=True,
        )
        for name, (values, there) in columns.items()
    }
    return Buckets(seq - rows + stops, stops - starts, stats)


def stats_of_columns(columns: Mapping[str, tuple[Array, NDArray[np.bool_] | None]]) -> Stats:
    """Minimum, maximum and last of a chunk's columns."""
    rows = len(next(iter(columns.values()))[0])
    (_, _, stats) = next(cut(rows - 1, columns, 0, rows, rows).each())
    return stats


def chain(parts: Sequence[Buckets]) -> Buckets:
    """One behind the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY
    names = dict.fromkeys(name for part in parts for name in part.stats)
    return Buckets(
        np.concatenate([part.seqs for part in parts]),
        np.concatenate([part.rows for part in parts]),
        {name: _side_by_side([part.of(name) for part in parts]) for name in names},
    )


def joined(found: Buckets, starts: Array) -> Buckets:
    """A bucket for each group of neighbours, which begin at `starts`."""
    ends = np.append(starts[1:], len(found)) - 1
    return Buckets(
        found.seqs[ends],
        np.add.reduceat(found.rows, starts),
        {name: _over(of, starts) for name, of in found.stats.items()},
    )


def halved(found: Buckets) -> Buckets:
    """Two and two joined; the last one may stand alone."""
    return joined(found, np.arange(0, len(found), 2))


def fewer(found: Buckets, most: int) -> Buckets:
    """At most `most` buckets: neighbours joined so that each holds about as many samples as any other."""
    if len(found) <= most:
        return found
    before = np.cumsum(found.rows) - found.rows
    groups = before * most // found.samples
    return joined(found, np.flatnonzero(np.diff(groups, prepend=-1)))


def listed(values: Array) -> list[Any]:
    """An array as lists, None for what is missing."""
    missing = np.isnan(values) if values.dtype.kind == "f" else values == _MISSING
    if missing.any():
        values = values.astype(object)
        values[missing] = None
    found: list[Any] = values.tolist()
    return found


def pack_buckets(found: Buckets) -> bytes:
    columns = {name: (str(of.dtype.kind), _squeeze(of)) for name, of in found.stats.items()}
    return _encode(_Packed(_squeeze(found.seqs), _squeeze(found.rows), columns))


def unpack_buckets(packed: bytes, only: Collection[str] | None = None) -> Buckets:
    """The buckets of `pack_buckets`; with `only`, just those columns of them."""
    block = _decoder.decode(packed)
    unpacker = zstandard.ZstdDecompressor()

    def restored(data: bytes, kind: str = "i") -> Array:
        shuffled = np.frombuffer(unpacker.decompress(data), np.uint8)
        return np.ascontiguousarray(shuffled.reshape(8, -1).T).view(f"<{kind}8")[:, 0]

    stats = {
        name: restored(data, kind).reshape(3, -1)
        for name, (kind, data) in block.columns.items()
        if only is None or name in only
    }
    return Buckets(restored(block.seqs), restored(block.rows), stats)


def _squeeze(values: Array) -> bytes:
    shuffled = np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8).T.tobytes()
    packed: bytes = zstandard.ZstdCompressor(level=_LEVEL).compress(shuffled)
    return packed


def _array(values: list[list[Value]]) -> Array:
    is_float = any(isinstance(value, float) for three in values for value in three)
    missing = float("nan") if is_float else _MISSING
    known = [[missing if value is None else value for value in three] for three in values]
    return np.array(known, np.float64 if is_float else np.int64).reshape(-1, 3)


def _marked(values: Array, present: NDArray[np.bool_] | None) -> Array:
    """Values in which what is missing, or not finite, is marked."""
    if values.dtype.kind == "f":
        known = np.isfinite(values) if present is None else np.isfinite(values) & present
        return values if known.all() else np.where(known, values, np.nan)
    return values if present is None else np.where(present, values, _MISSING)


def _over(values: Array, starts: Array, *, whole: bool = False) -> Array:
    """Minimum, maximum and last over groups: of [3, n], or with `whole` of [n] samples, where a last one that is missing stays so."""
    low, high, last = (values, values, values) if whole else values
    is_float = values.dtype.kind == "f"
    ends = np.append(starts[1:], low.shape[-1]) - 1
    if is_float:
        least, most = (
            np.fmin.reduceat(low, starts),
            np.fmax.reduceat(high, starts),
        )  # these pass over NaN
    else:
        least = np.minimum.reduceat(np.where(low == _MISSING, _HIGHEST, low), starts)
        least[least == _HIGHEST] = _MISSING
        most = np.maximum.reduceat(high, starts)
    if not whole:
        missing = np.isnan(last) if is_float else last == _MISSING
        if missing.any():
            known = np.maximum.reduceat(np.where(missing, -1, np.arange(len(last))), starts)
            ends = np.where(known >= 0, known, ends)
    return np.stack((least, most, last[ends]))


def _side_by_side(parts: Sequence[Array]) -> Array:
    if len({part.dtype for part in parts}) > 1:
        parts = [_as_float(part) for part in parts]
    return np.concatenate(parts, axis=1)


def _as_float(values: Array) -> Array:
    return (
        values
        if values.dtype.kind == "f"
        else np.where(values == _MISSING, np.nan, values.astype(np.float64))
    )
