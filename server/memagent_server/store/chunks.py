"""A chunk of samples as it is read before it is stored: columns, summary, and the packed bytes that will be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import msgspec

from memagent.errors import WireError
from memagent.wire.columns import ChunkHeader, Value, pack
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import Chunk
from memagent_server.store import arrays
from memagent_server.store.arrays import Arrays

Stats = dict[str, list[Value]]
"""{column: [min, max, last]} over finite values; last is None where the last value is missing or not finite."""

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Stats)


@dataclass(frozen=True)
class ReadChunk:
    """One chunk of a batch, decoded. `packed` is what came, or for columns that came as JSON, what they pack to.

    `newest` is the last value of each column that is not missing; what is not finite reads None.
    """

    stream: str
    packed: bytes
    arrays: Arrays
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


def read_chunk(chunk: Chunk) -> ReadChunk:
    """Decode a chunk. Raises WireError whose field is `packed`, `columns` or a column's name under one of them."""
    if (chunk.packed is None) == (chunk.columns is None):
        raise WireError("a chunk has either packed or columns", field="columns")
    packed = chunk.packed if chunk.packed is not None else _packed(chunk)
    columns = arrays.read_arrays(packed)
    return ReadChunk(
        chunk.stream, packed, columns, arrays.stats_of(columns), arrays.newest_values(columns)
    )


def _packed(chunk: Chunk) -> bytes:
    columns = chunk.columns or {}
    kinds = scalar_kind_of if chunk.stream == SCALARS_STREAM else kind_of
    try:
        return pack(columns, kind_of=kinds)
    except WireError as error:
        field = error.field if error.field in columns else None
        raise WireError(
            str(error), field="columns" if field is None else f"columns.{field}"
        ) from error


def stats_of(columns: Mapping[str, Sequence[Value]]) -> Stats:
    """Minimum, maximum and last of every column."""
    return {name: _stats(values) for name, values in columns.items()}


def pack_stats(stats: Stats) -> bytes:
    return _encode(stats)


def unpack_stats(packed: bytes) -> Stats:
    return _decoder.decode(packed)


def _stats(values: Sequence[Value]) -> list[Value]:
    finite = [value for value in values if value is not None and isfinite(value)]
    if not finite:
        return [None, None, None]
    last = values[-1]
    return [min(finite), max(finite), last if last is not None and isfinite(last) else None]
