"""Chunks as the store keeps them once they are compacted: smaller than they travelled, and nothing lost.

1. The whole chunk is one zstd frame, header and all. zstd's magic number tells it from a chunk as it came (`MAC1`).
2. `time_s` is nearly the first time plus the lengths of the steps since. Where both columns are whole, the column `time_s@step_s` stands
   in its place: the difference of the bit patterns of the time and of that sum, which changes by a few bits a step.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from memagent.errors import WireError
from memagent.wire.columns import (
    MAGIC,
    MAX_INT,
    MAX_RAW_BYTES,
    ChunkHeader,
    ColumnHeader,
    Value,
    read_header,
    unpack,
)
from memagent.wire.fields import ColumnKind
from memagent_server.store.chunks import read_arrays

LEVEL = 9
"""A third of a millisecond for 512 samples of 27 columns; level 19 takes twenty times that for a tenth less."""
_FRAME = b"\x28\xb5\x2f\xfd"
_MOST_BYTES = 2 * MAX_RAW_BYTES
_TIME, _STEP, _DERIVED = "time_s", "step_s", "time_s@step_s"
_EPOCH_S = float(2**30)
"""What the first time is measured from, so that its difference fits."""
_KINDS: dict[str, ColumnKind] = {"i": "int", "f": "float"}
_encode_header = msgspec.msgpack.Encoder().encode

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Column = tuple[Array, Mask | None]
"""Values as int64 or float64, and which of them are there; None where all are."""
Columns = dict[str, Column]


def seal(columns: Columns) -> bytes:
    """Pack columns of equal length for keeping."""
    derived = _derived(columns)
    if derived is not None:
        columns = {_DERIVED if name == _TIME else name: of for name, of in columns.items()}
        columns[_DERIVED] = derived, None
    raw = b"".join(part for of in columns.values() for part in _parts(*of))
    steps, _ = columns["step"]
    header = ChunkHeader(
        rows=len(steps),
        columns=[
            ColumnHeader(name, _KINDS[of[0].dtype.kind], of[1] is not None)
            for name, of in columns.items()
        ],
        codec="none",
        raw_bytes=len(raw),
        crc32=zlib.crc32(raw),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
    )
    head = _encode_header(header)
    chunk = b"".join((MAGIC, len(head).to_bytes(4, "little"), head, raw))
    packed: bytes = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(chunk)
    return packed


def _parts(values: Array, present: Mask | None) -> Iterator[bytes]:
    """A column as `wire.columns` lays it out."""
    if present is not None:
        yield np.packbits(present, bitorder="little").tobytes()
        # a missing value repeats the one before, which costs nothing after the difference is taken
        newest = np.maximum.accumulate(np.where(present, np.arange(len(values)), -1))
        values = np.where(newest >= 0, values[newest], 0)
    before = np.concatenate(([0], values[:-1].view(np.int64)))
    bits = values.view(np.int64)
    moved = bits ^ before if values.dtype.kind == "f" else bits - before
    yield moved.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8).T.tobytes()


def unseal(packed: bytes, *, only: Container[str] | None = None) -> dict[str, list[Value]]:
    """Columns of a stored chunk, sealed or as it came; with `only`, just those of them. Raises WireError for one that is damaged."""
    if packed[:4] != _FRAME:
        return unpack(packed, only=only)  # few samples: faster than by arrays
    return {name: _listed(*column) for name, column in unseal_arrays(packed, only).items()}


def unseal_arrays(packed: bytes, only: Container[str] | None = None) -> Columns:
    """The columns as arrays. Raises WireError."""
    arrays = read_arrays(_opened(packed))
    found: Columns = {}
    for block in (arrays.ints, arrays.floats):
        for index, name in enumerate(block.names):
            present = (
                None
                if block.present is None or block.present[index].all()
                else block.present[index]
            )
            found[name] = block.values[index], present
    if _DERIVED in found:
        found[_TIME] = _times(found[_DERIVED][0], _lengths(*found[_STEP])), None
    names = (_TIME if column.name == _DERIVED else column.name for column in arrays.header.columns)
    return {name: found[name] for name in names if only is None or name in only}


def kinds_of(packed: bytes) -> dict[str, ColumnKind]:
    """{column: int or float} of a stored chunk."""
    columns = read_header(_opened(packed)).columns
    return {
        _TIME if c.name == _DERIVED else c.name: "float" if c.name == _DERIVED else c.kind
        for c in columns
    }


def _opened(packed: bytes) -> bytes:
    if packed[:4] != _FRAME:
        return packed
    try:
        chunk: bytes = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MOST_BYTES)
    except zstandard.ZstdError as error:
        raise WireError(
            f"a stored chunk cannot be decompressed: {error}", field="packed"
        ) from error
    return chunk


def _derived(columns: Columns) -> Array | None:
    if _TIME not in columns or _STEP not in columns or _DERIVED in columns:
        return None
    (times, are_there), lengths = columns[_TIME], _lengths(*columns[_STEP])
    if are_there is not None or times.dtype.kind != "f" or lengths.dtype.kind != "f":
        return None
    if not (np.isfinite(times).all() and np.isfinite(lengths).all()):
        return None
    moved: Array = times.view(np.int64) - _expected(times[0], lengths).view(np.int64)
    return moved if np.abs(moved).max() < MAX_INT else None


def _times(moved: Array, lengths: Array) -> Array:
    first = (np.array([_EPOCH_S]).view(np.int64) + moved[:1]).view(np.float64)[0]
    times: Array = (_expected(first, lengths).view(np.int64) + moved).view(np.float64)
    return times


def _expected(first: float, lengths: Array) -> Array:
    """What the times would be; of the first the epoch. `accumulate` adds one after the other, the same everywhere."""
    expected = np.add.accumulate(np.concatenate(([first], lengths[1:])))
    expected[0] = _EPOCH_S
    return expected


def _lengths(values: Array, present: Mask | None) -> Array:
    return values if present is None else np.where(present, values, 0.0)


def _listed(values: Array, present: Mask | None) -> list[Value]:
    found: list[Value] = values.tolist()
    if present is None:
        return found
    return [value if there else None for value, there in zip(found, present.tolist(), strict=True)]
