"""Chunks as the store keeps them once they are compacted: smaller than they travelled, and nothing lost.

1. The whole chunk is one zstd frame, header and all. zstd's magic number tells it from a chunk as it came (`MAC1`).
2. `time_s` is nearly the time before plus the step's length. Where both columns are whole, the column `time_s@step_s` stands in its
   place: the difference of the bit patterns of the time and of that sum, a few bits instead of a few bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import cast

import zstandard

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, MAX_RAW_BYTES, Value, pack, read_header, unpack
from memagent.wire.fields import Kind

LEVEL = 9
"""A third of a millisecond for 512 samples of 27 columns; level 19 takes twenty times that for a tenth less."""
_FRAME = b"\x28\xb5\x2f\xfd"
_MOST_BYTES = 2 * MAX_RAW_BYTES
_DERIVED = "time_s@step_s"
_EPOCH_S = float(2**30)
"""What the first time is measured from, so that its difference fits."""


def seal(columns: Mapping[str, Sequence[Value]], kinds: Mapping[str, Kind]) -> bytes:
    """Pack columns of equal length for keeping."""
    derived = _derived(columns)
    if derived is not None:
        columns = {_DERIVED if name == "time_s" else name: values for name, values in columns.items()}
        columns[_DERIVED], kinds = derived, {**kinds, _DERIVED: "int"}
    chunk = pack(columns, codec="none", kind_of=kinds.__getitem__)
    packed: bytes = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False).compress(chunk)
    return packed


def unseal(packed: bytes, *, only: Collection[str] | None = None) -> dict[str, list[Value]]:
    """Columns of a stored chunk, sealed or as it came; with `only`, just those of them. Raises WireError for one that is damaged."""
    chunk = _opened(packed)
    needed = only if only is None or "time_s" not in only else {*only, _DERIVED, "step_s"}
    found = unpack(chunk, only=needed)
    if _DERIVED in found:
        times = _restored(found[_DERIVED], found["step_s"])
        found = {"time_s" if name == _DERIVED else name: values for name, values in found.items()}
        found["time_s"] = times
    return found if only is None else {name: values for name, values in found.items() if name in only}


def kinds_of(packed: bytes) -> dict[str, Kind]:
    """{column: int or float} of a stored chunk."""
    kinds = {column.name: column.kind for column in read_header(_opened(packed)).columns}
    return {
        "time_s" if name == _DERIVED else name: "float" if name == _DERIVED else kind for name, kind in kinds.items()
    }


def _opened(packed: bytes) -> bytes:
    if packed[:4] != _FRAME:
        return packed
    try:
        chunk: bytes = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_MOST_BYTES)
    except zstandard.ZstdError as error:
        raise WireError(f"a stored chunk cannot be decompressed: {error}", field="packed") from error
    return chunk


def _derived(columns: Mapping[str, Sequence[Value]]) -> list[Value] | None:
    times, steps = columns.get("time_s"), columns.get("step_s")
    if times is None or steps is None or _DERIVED in columns:
        return None
    if not all(value is not None and isfinite(value) for value in times):
        return None
    if not all(value is None or isfinite(value) for value in steps):
        return None
    whole = cast("Sequence[float]", times)
    expected = [_EPOCH_S, *(before + (step or 0.0) for before, step in zip(whole, steps[1:], strict=False))]
    moved = [actual - guess for actual, guess in zip(_bits(whole), _bits(expected), strict=True)]
    return cast("list[Value]", moved) if all(-MAX_INT < move < MAX_INT for move in moved) else None


def _restored(moved: Sequence[Value], steps: Sequence[Value]) -> list[Value]:
    times: list[Value] = []
    expected = _EPOCH_S
    for index, move in enumerate(cast("Sequence[int]", moved)):
        if index:
            expected = cast("float", times[-1]) + (steps[index] or 0.0)
        times.append(_float(_bits([expected])[0] + move))
    return times


def _bits(values: Sequence[float]) -> array[int]:
    return array("q", array("d", values).tobytes())


def _float(bits: int) -> float:
    return array("d", array("q", [bits]).tobytes())[0]
