"""A chunk of samples as it is read before it is stored: columns, summary, and the packed bytes that will be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import msgspec

from memagent.errors import WireError
from memagent.wire.columns import Value, pack, unpack
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import Chunk

Stats = dict[str, list[Value]]
"""{column: [min, max, last]} over finite values; last is None where the last value is missing or not finite."""

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Stats)


@dataclass(frozen=True)
class ReadChunk:
    """One chunk of a batch, decoded. `packed` is what came, or for columns that came as JSON, what they pack to."""

    stream: str
    columns: Mapping[str, Sequence[Value]]
    packed: bytes

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


def read_chunk(chunk: Chunk) -> ReadChunk:
    """Decode a chunk. Raises WireError whose field is `packed`, `columns` or a column's name under one of them."""
    if (chunk.packed is None) == (chunk.columns is None):
        raise WireError("a chunk has either packed or columns", field="columns")
    if chunk.packed is not None:
        return ReadChunk(chunk.stream, unpack(chunk.packed), chunk.packed)
    columns = chunk.columns or {}
    kinds = scalar_kind_of if chunk.stream == SCALARS_STREAM else kind_of
    try:
        packed = pack(columns, kind_of=kinds)
    except WireError as error:
        field = error.field if error.field in columns else None
        raise WireError(str(error), field="columns" if field is None else f"columns.{field}") from error
    return ReadChunk(chunk.stream, unpack(packed), packed)


def stats_of(columns: Mapping[str, Sequence[Value]]) -> Stats:
    """Minimum, maximum and last of every column."""
    return {name: _stats(values) for name, values in columns.items()}


def pack_stats(stats: Stats) -> bytes:
    return _encode(stats)


def unpack_stats(packed: bytes) -> Stats:
    return _decoder.decode(packed)


def newest_values(columns: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """The last value of each column that is not missing; what is not finite reads None."""
    found = {
        name: next((value for value in reversed(values) if value is not None), None) for name, values in columns.items()
    }
    return {name: value if value is not None and isfinite(value) else None for name, value in found.items()}


def _stats(values: Sequence[Value]) -> list[Value]:
    finite = [value for value in values if value is not None and isfinite(value)]
    if not finite:
        return [None, None, None]
    last = values[-1]
    return [min(finite), max(finite), last if last is not None and isfinite(last) else None]
