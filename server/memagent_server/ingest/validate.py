"""What a message must fulfil beyond its types, checked before anything is stored.

Raises WireError whose `field` is the exact place, such as `chunks[0].columns.allocated_bytes`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from memagent.errors import WireError
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Batch, RunStart, SnapshotMessage
from memagent_server.store.chunks import ReadChunk, read_chunk

MAX_BATCH_ROWS = 200_000
MAX_DEPTH = 32
MAX_REASON = 64
MAX_REASONS = 100
MOST_PAGE_BYTES = 64 * 2**20
"""Of a viewer's page, unpacked."""
_PIECE_BYTES = 2**20

T = TypeVar("T", bound=msgspec.Struct)


def check_start(message: RunStart) -> RunStart:
    """The message, storable."""
    for index, device in enumerate(message.devices):
        if device.id == SCALARS_STREAM:
            raise _wrong(
                f"devices[{index}].id",
                f"{SCALARS_STREAM!r} is the name of the stream of scalars, no device's",
            )
    return storable(message)


def check_batch(batch: Batch) -> tuple[Batch, list[ReadChunk]]:
    """The batch, storable, and its chunks decoded and checked."""
    _check_dropped(batch.dropped_samples)
    chunks: list[ReadChunk] = []
    rows = 0
    for index, chunk in enumerate(batch.chunks):
        place = f"chunks[{index}]"
        if "\0" in chunk.stream:
            raise _wrong(f"{place}.stream", "a stream's name holds no NUL")
        try:
            read = read_chunk(chunk)
        except WireError as error:
            where = f"{place}.{error.field}" if error.field else place
            raise _wrong(where, str(error)) from error
        rows += read.rows
        if rows > MAX_BATCH_ROWS:
            raise _wrong(place, f"a batch holds at most {MAX_BATCH_ROWS} samples")
        _check_columns(read, f"{place}.columns")
        chunks.append(read)
    events = [storable(event, f"events[{index}]") for index, event in enumerate(batch.events)]
    return msgspec.structs.replace(batch, events=events), chunks


def check_snapshot(message: SnapshotMessage) -> SnapshotMessage:
    """The message, storable, with a viewer's page that unpacks within its bound."""
    if message.viewer:
        _check_page(message.viewer)
    return storable(message)


def storable(message: T, place: str = "") -> T:
    """A message whose free parts any database and any JSON reader takes: no NUL, no NaN, no numbers beyond 64 bits, no abyss."""
    return msgspec.convert(_storable(msgspec.to_builtins(message), place, 0), type(message))


def _check_columns(chunk: ReadChunk, place: str) -> None:
    """Readings are finite, sizes and counters whole and not negative. What users log may be anything."""
    _check_steps(chunk, f"{place}.step")
    checked = [
        name for name in chunk.stats if chunk.stream != SCALARS_STREAM or name in ("step", "time_s")
    ]
    floats = chunk.arrays.floats
    for name in checked:
        if not name.endswith(("_bytes", "_total")):
            continue
        if name in floats.names and floats.has_any(name):
            raise _wrong(f"{place}.{name}", "sizes and counts are whole numbers")
        least = chunk.stats[name][0]
        if least is not None and least < 0:
            raise _wrong(f"{place}.{name}", f"{least} is negative")
    for name, value in floats.odd().items():
        if name in checked:
            raise _wrong(f"{place}.{name}", f"{value} is no reading: leave out what is not known")


def _check_steps(chunk: ReadChunk, place: str) -> None:
    if "step" not in chunk.stats:
        raise _wrong(place, "every chunk has a column `step`")
    ints = chunk.arrays.ints
    if "step" not in ints.names or not ints.has_all("step"):
        raise _wrong(place, "every sample has a step, a whole number")
    steps = ints.column("step")
    if steps[0] < 0:
        raise _wrong(place, f"{steps[0]} is negative")
    back = np.flatnonzero(steps[1:] < steps[:-1])
    if back.size:
        before, after = steps[back[0]], steps[back[0] + 1]
        raise _wrong(place, f"{after} comes after {before}: steps do not go back within a chunk")


def _check_dropped(dropped: Mapping[str, int]) -> None:
    if len(dropped) > MAX_REASONS:
        raise _wrong("dropped_samples", f"at most {MAX_REASONS} reasons")
    for reason in dropped:
        if not 0 < len(reason) <= MAX_REASON or "\0" in reason:
            raise _wrong("dropped_samples", f"a reason has 1 to {MAX_REASON} characters")


def _storable(value: Any, place: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _wrong(place, f"more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, dict):
        return {
            _storable(key, place, depth): _storable(item, f"{place}.{key}".lstrip("."), depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_storable(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    return value


def _check_page(packed: bytes) -> None:
    """It is read by pieces: what claims to be a page may unpack to anything."""
    unpacker, size, rest = zlib.decompressobj(), 0, packed
    try:
        while rest and not unpacker.eof and size <= MOST_PAGE_BYTES:
            size += len(unpacker.decompress(rest, _PIECE_BYTES))
            rest = unpacker.unconsumed_tail
    except zlib.error as error:
        raise _wrong("viewer", f"it is no zlib: {error}") from error
    if size > MOST_PAGE_BYTES:
        raise _wrong("viewer", f"it unpacks to more than {MOST_PAGE_BYTES} bytes")
    if not unpacker.eof:
        raise _wrong("viewer", "it breaks off before its end")


def _wrong(field: str, what: str) -> WireError:
    return WireError(f"{field}: {what}", field=field)
