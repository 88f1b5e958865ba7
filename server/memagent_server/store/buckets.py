"""Buckets: minimum, maximum and last of every column over consecutive samples, kept as columns. Pure: values in, values out.

Packed, each column is zstd of its byte-shuffled values, so that a chart of four columns unpacks four. A value that is missing is a
number that no reading can be: NaN, or -2**63.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import zstandard

from memagent.wire.columns import Value
from memagent_server.store.chunks import Stats

Three = tuple[list[Value], list[Value], list[Value]]
"""Minimum, maximum and last of each bucket."""

_LEVEL = 9
_MISSING = -(2**63)
_NOTHING: list[Value] = [None, None, None]


class _Packed(msgspec.Struct, array_like=True):
    buckets: int
    columns: dict[str, tuple[str, bytes]]
    """{name: (`q` or `d`, zstd of shuffled values)}; `seq` and `rows` have one value a bucket, all others three."""
    seqs: tuple[str, bytes]
    rows: tuple[str, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Packed)


@dataclass(frozen=True)
class Buckets:
    """`seqs` is the place of the last sample of each bucket, `rows` how many it holds."""

    seqs: list[int]
    rows: list[int]
    stats: dict[str, Three]

    def __len__(self) -> int:
        return len(self.seqs)

    def of(self, name: str) -> Three:
        found = self.stats.get(name)
        return found if found is not None else (_none(len(self)), _none(len(self)), _none(len(self)))

    def __getitem__(self, part: slice) -> Buckets:
        stats = {name: (low[part], high[part], last[part]) for name, (low, high, last) in self.stats.items()}
        return Buckets(self.seqs[part], self.rows[part], stats)

    def pick(self, places: Sequence[int]) -> Buckets:
        """The buckets at these places, in this order."""

        def picked(values: list[Value]) -> list[Value]:
            return [values[place] for place in places]

        stats = {name: (picked(low), picked(high), picked(last)) for name, (low, high, last) in self.stats.items()}
        return Buckets([self.seqs[place] for place in places], [self.rows[place] for place in places], stats)

    def each(self) -> Iterator[Stats]:
        """One bucket after the other."""
        for place in range(len(self)):
            yield {name: [of[place] for of in three] for name, three in self.stats.items()}


EMPTY = Buckets([], [], {})


def gather(parts: Iterable[tuple[int, int, Stats]]) -> Buckets:
    """Buckets from (seq, rows, stats) of each."""
    found = list(parts)
    names = dict.fromkeys(name for _, _, stats in found for name in stats)
    columns = {name: [stats.get(name, _NOTHING) for _, _, stats in found] for name in names}
    return Buckets(
        [seq for seq, _, _ in found],
        [rows for _, rows, _ in found],
        {name: ([t[0] for t in of], [t[1] for t in of], [t[2] for t in of]) for name, of in columns.items()},
    )


def chain(parts: Sequence[Buckets]) -> Buckets:
    """One behind the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.stats)
    columns = {name: [part.of(name) for part in parts] for name in names}
    return Buckets(
        [seq for part in parts for seq in part.seqs],
        [rows for part in parts for rows in part.rows],
        {name: cast("Three", tuple([v for of in parts for v in of[k]] for k in range(3))) for name, parts in columns.items()},
    )  # fmt: skip


def joined(found: Buckets, groups: Sequence[slice]) -> Buckets:
    """A bucket for each group of neighbours."""
    return Buckets(
        [found.seqs[group][-1] for group in groups],
        [sum(found.rows[group]) for group in groups],
        {
            name: (
                [_least(low[group]) for group in groups],
                [_most(high[group]) for group in groups],
                [_last(last[group]) for group in groups],
            )
            for name, (low, high, last) in found.stats.items()
        },
    )


def halved(found: Buckets) -> Buckets:
    """Two and two joined; the last one may stand alone."""
    return joined(found, [slice(first, first + 2) for first in range(0, len(found), 2)])


def fewer(found: Buckets, most: int) -> Buckets:
    """At most `most` buckets: neighbours joined so that each holds about as many samples as any other."""
    if len(found) <= most:
        return found
    total = sum(found.rows)
    groups: list[slice] = []
    before, first, group = 0, 0, 0
    for place, rows in enumerate(found.rows):
        now = before * most // total
        if now != group and place > first:
            groups.append(slice(first, place))
            first = place
        group = now
        before += rows
    return joined(found, [*groups, slice(first, len(found))])


def pack_buckets(found: Buckets) -> bytes:
    columns = {name: _pack([*low, *high, *last]) for name, (low, high, last) in found.stats.items()}
    return _encode(_Packed(len(found), columns, _pack(found.seqs), _pack(found.rows)))


def unpack_buckets(packed: bytes, only: Collection[str] | None = None) -> Buckets:
    """The buckets of `pack_buckets`; with `only`, just those columns of them."""
    block = _decoder.decode(packed)
    count = block.buckets
    stats: dict[str, Three] = {}
    for name, (kind, data) in block.columns.items():
        if only is None or name in only:
            values = _unpack(kind, data)
            stats[name] = values[:count], values[count : 2 * count], values[2 * count :]
    return Buckets(cast("list[int]", _unpack(*block.seqs)), cast("list[int]", _unpack(*block.rows)), stats)


def _pack(values: Sequence[Value]) -> tuple[str, bytes]:
    kind = "d" if any(isinstance(value, float) for value in values) else "q"
    missing = float("nan") if kind == "d" else _MISSING
    data = array(kind, [missing if value is None else value for value in values]).tobytes()
    return kind, zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(data[byte::8] for byte in range(8)))


def _unpack(kind: str, data: bytes) -> list[Value]:
    shuffled = zstandard.ZstdDecompressor().decompress(data)
    count = len(shuffled) // 8
    buffer = bytearray(len(shuffled))
    for byte in range(8):
        buffer[byte::8] = shuffled[byte * count : (byte + 1) * count]
    values: list[Value] = [*array(kind, bytes(buffer))]
    if kind == "q":
        return [None if value == _MISSING else value for value in values] if _MISSING in values else values
    return [value if value == value else None for value in values]  # noqa: PLR0124  # NaN alone differs from itself


def _none(count: int) -> list[Value]:
    return [None] * count


def _least(values: Sequence[Value]) -> Value:
    return min((value for value in values if value is not None), default=None)


def _most(values: Sequence[Value]) -> Value:
    return max((value for value in values if value is not None), default=None)


def _last(values: Sequence[Value]) -> Value:
    return next((value for value in reversed(values) if value is not None), None)
