"""Chunks as the store keeps them once they are compacted: smaller than they travelled, and nothing lost.

1. The whole chunk is one zstd frame, header and all. zstd's magic number tells it from a chunk as it came (`MAC1`).
2. `time_s` is nearly the first time plus the lengths of the steps since. Where both columns are whole, the column `time_s@step_s` stands
   in its place: the difference of the bit patterns of the time and of that sum, which changes by a few bits a step.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, MAX_RAW_BYTES, Value, pack, read_header, unpack
from memagent.wire.fields import Kind
from memagent_server.store.arrays import read_arrays

LEVEL = 9
"""A third of a millisecond for 512 samples of 27 columns; level 19 takes twenty times that for a tenth less."""
_FRAME = b"\x28\xb5\x2f\xfd"
_MOST_BYTES = 2 * MAX_RAW_BYTES
_TIME, _STEP, _DERIVED = "time_s", "step_s", "time_s@step_s"
_EPOCH_S = float(2**30)
"""What the first time is measured from, so that its difference fits."""


def seal(columns: Mapping[str, Sequence[Value]], kinds: Mapping[str, Kind]) -> bytes:
    """Pack columns of equal length for keeping."""
    derived = _derived(columns)
    if derived is not None:
        columns = {_DERIVED if name == _TIME else name: values for name, values in columns.items()}
        columns[_DERIVED], kinds = derived, {**kinds, _DERIVED: "int"}
    chunk = pack(columns, codec="none", kind_of=kinds.__getitem__)
    packed: bytes = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(chunk)
    return packed


def unseal(packed: bytes, *, only: Container[str] | None = None) -> dict[str, list[Value]]:
    """Columns of a stored chunk, sealed or as it came; with `only`, just those of them. Raises WireError for one that is damaged."""
    if packed[:4] != _FRAME:
        return unpack(packed, only=only)  # few samples: faster than by arrays
    return {name: _listed(*column) for name, column in unseal_arrays(packed, only).items()}


def unseal_arrays(
    packed: bytes, only: Container[str] | None = None
) -> dict[str, tuple[NDArray[Any], NDArray[np.bool_] | None]]:
    """{column: values, and which are there, None where all are} of a stored chunk. Raises WireError."""
    arrays = read_arrays(_opened(packed))
    found: dict[str, tuple[NDArray[Any], NDArray[np.bool_] | None]] = {}
    for block in (arrays.ints, arrays.floats):
        for index, name in enumerate(block.names):
            present = None if block.present is None or block.present[index].all() else block.present[index]
            found[name] = block.values[index], present
    if _DERIVED in found:
        found[_TIME] = _times(found[_DERIVED][0], _lengths(*found[_STEP])), None
    names = (_TIME if column.name == _DERIVED else column.name for column in arrays.header.columns)
    return {name: found[name] for name in names if only is None or name in only}


def kinds_of(packed: bytes) -> dict[str, Kind]:
    """{column: int or float} of a stored chunk."""
    columns = read_header(_opened(packed)).columns
    return {_TIME if c.name == _DERIVED else c.name: "float" if c.name == _DERIVED else c.kind for c in columns}


def _opened(packed: bytes) -> bytes:
    if packed[:4] != _FRAME:
        return packed
    try:
        chunk: bytes = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MOST_BYTES)
    except zstandard.ZstdError as error:
        raise WireError(f"a stored chunk cannot be decompressed: {error}", field="packed") from error
    return chunk


def _derived(columns: Mapping[str, Sequence[Value]]) -> list[Value] | None:
    times, steps = columns.get(_TIME), columns.get(_STEP)
    if times is None or steps is None or _DERIVED in columns or None in times:
        return None
    taken = np.array(times, np.float64)
    lengths = np.array([0.0 if step is None else step for step in steps], np.float64)
    if not (np.isfinite(taken).all() and np.isfinite(lengths).all()):
        return None
    moved = taken.view(np.int64) - _expected(taken[0], lengths).view(np.int64)
    return moved.tolist() if np.abs(moved).max() < MAX_INT else None


def _times(moved: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    first = (np.array([_EPOCH_S]).view(np.int64) + moved[:1]).view(np.float64)[0]
    times: NDArray[Any] = (_expected(first, lengths).view(np.int64) + moved).view(np.float64)
    return times


def _expected(first: float, lengths: NDArray[Any]) -> NDArray[Any]:
    """What the times would be; of the first the epoch. `accumulate` adds one after the other, the same everywhere."""
    expected = np.add.accumulate(np.concatenate(([first], lengths[1:])))
    expected[0] = _EPOCH_S
    return expected


def _lengths(values: NDArray[Any], present: NDArray[np.bool_] | None) -> NDArray[Any]:
    return values if present is None else np.where(present, values, 0.0)


def _listed(values: NDArray[Any], present: NDArray[np.bool_] | None) -> list[Value]:
    found: list[Value] = values.tolist()
    if present is None:
        return found
    return [value if there else None for value, there in zip(found, present.tolist(), strict=True)]
