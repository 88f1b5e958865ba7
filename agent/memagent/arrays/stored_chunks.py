"""Stored chunks decoded to numpy arrays: as they were sent, or compacted (`store.packing`).

1. A compacted chunk is one zstd frame, with its header. zstd's magic number tells it from a chunk
   as it was sent (`MAC1`).
2. In place of `time_s` it may have `time_s@step_s`: the difference between the bit patterns of the
   time and of the first time plus the step lengths.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec
import numpy as np

from memagent.arrays.chunk_arrays import Array, Mask, read_arrays
from memagent.errors import WireError
from memagent.wire.columns import MAGIC, MAX_RAW_BYTES, read_header, read_payload

try:
    import zstandard
except ImportError:  # optional in the agent's environment
    zstandard = None  # type: ignore[assignment]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_BYTES = 2 * MAX_RAW_BYTES
TIME = "time_s"
STEP = "step_s"
DERIVED = "time_s@step_s"
EPOCH_S = float(2**30)
"""Reference of the first time, so that its difference fits."""

Column = tuple[Array, Mask | None]
"""Values as int64 or float64, and which are present; None if all are."""
Columns = dict[str, Column]


def unseal_arrays(packed: bytes, only: Container[str] | None = None) -> Columns:
    """Return the columns as arrays. Raises WireError for a damaged chunk."""
    arrays = read_arrays(decompress(packed))
    columns: Columns = {}
    for block in (arrays.ints, arrays.floats):
        for index, name in enumerate(block.names):
            present = None if block.present is None else block.present[index]
            is_complete = present is None or bool(present.all())
            columns[name] = block.values[index], None if is_complete else present
    if DERIVED in columns:
        columns[TIME] = _restore_times(columns[DERIVED][0], lengths_of(*columns[STEP])), None
    names = (TIME if column.name == DERIVED else column.name for column in arrays.header.columns)
    return {name: columns[name] for name in names if only is None or name in only}


def decompress(packed: bytes) -> bytes:
    if packed[:4] != ZSTD_MAGIC:
        return packed
    if zstandard is None:
        raise WireError("the chunk is compressed with zstd: install the package zstandard")
    try:
        chunk: bytes = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MAX_BYTES)
    except zstandard.ZstdError as error:
        raise WireError(
            f"a stored chunk cannot be decompressed: {error}", field="packed"
        ) from error
    return chunk


def _restore_times(differences: Array, lengths: Array) -> Array:
    first = (np.array([EPOCH_S]).view(np.int64) + differences[:1]).view(np.float64)[0]
    bits = expected_times(first, lengths).view(np.int64) + differences
    times: Array = bits.view(np.float64)
    return times


def expected_times(first: float, lengths: Array) -> Array:
    """Return the first time plus the lengths; in place of the first time itself, the epoch.

    `accumulate` adds in order, so the result is the same on every machine.
    """
    expected = np.add.accumulate(np.concatenate(([first], lengths[1:])))
    expected[0] = EPOCH_S
    return expected


def lengths_of(values: Array, present: Mask | None) -> Array:
    return values if present is None else np.where(present, values, 0.0)


def without_zstd(packed: bytes) -> bytes:
    """Return a stored chunk as one that every agent reads: its payload has no zstd."""
    chunk = decompress(packed)
    header = read_header(chunk)
    if header.codec != "zstd":
        return chunk
    header, payload = read_payload(chunk, header)
    encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, codec="none"))
    return b"".join((MAGIC, len(encoded).to_bytes(4, "little"), encoded, payload))
