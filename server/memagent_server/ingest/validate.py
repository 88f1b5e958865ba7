"""Check messages beyond their types, before anything is stored.

Raises WireError with the exact `field`, such as `chunks[0].columns.allocated_bytes`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from memagent.errors import WireError
from memagent.wire.columns import ChunkHeader, read_header
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Batch, ConsoleLine, RunStart, SnapshotMessage
from memagent_server.ingest.message_limits import MAX_VALUES
from memagent_server.store.chunks import ReadChunk, read_chunk

MAX_BATCH_ROWS = 200_000
MAX_BATCH_RAW_BYTES = 32 * 2**20
"""Of all chunks, decompressed."""
MAX_BATCH_COLUMNS = 10_000
MAX_FREE_VALUES = 50_000
MAX_FREE_BYTES = 2**20
"""A message's config, environment, data, texts: an agent sends at most 200,000 characters."""
MAX_SNAPSHOT_BYTES = 16 * 2**20
MAX_DEPTH = 32
MAX_REASON_LENGTH = 64
MAX_REASONS = 100
MAX_VIEWER_BYTES = 64 * 2**20
"""The uncompressed size of a viewer's page."""
_CHUNK_BYTES = 2**20

T = TypeVar("T", bound=msgspec.Struct)


def check_start(message: RunStart) -> RunStart:
    """Check the message; return it in storable form."""
    for index, device in enumerate(message.devices):
        if device.id == SCALARS_STREAM:
            raise _invalid(f"devices[{index}].id", f"{SCALARS_STREAM!r} is reserved for scalars")
    return storable(message)


def check_batch(batch: Batch) -> tuple[Batch, list[ReadChunk]]:
    """Check the batch; return it in storable form, with its decoded chunks."""
    _check_dropped(batch.dropped_samples)
    headers = _check_sizes(batch)
    chunks: list[ReadChunk] = []
    rows = 0
    for index, chunk in enumerate(batch.chunks):
        path = f"chunks[{index}]"
        if "\0" in chunk.stream:
            raise _invalid(f"{path}.stream", "names cannot contain NUL characters")
        try:
            read = read_chunk(chunk, headers[index])
        except WireError as error:
            field = f"{path}.{error.field}" if error.field else path
            raise _invalid(field, str(error)) from error
        rows += read.rows
        if rows > MAX_BATCH_ROWS:
            raise _invalid(path, f"a batch has at most {MAX_BATCH_ROWS} samples")
        _check_columns(read, f"{path}.columns")
        chunks.append(read)
    room = _Room()
    events = [storable(event, f"events[{index}]", room) for index, event in enumerate(batch.events)]
    lines = [
        _storable_line(line, f"console[{index}]", room) for index, line in enumerate(batch.console)
    ]
    return msgspec.structs.replace(batch, events=events, console=lines), chunks


def check_snapshot(message: SnapshotMessage) -> SnapshotMessage:
    """Check the message, including the size of its viewer's page; return it in storable form."""
    if message.viewer:
        _check_viewer(message.viewer)
    return storable(message, room=_Room(MAX_VALUES, MAX_SNAPSHOT_BYTES))


class _Room:
    """The values and bytes that the free-form parts of a message may still take."""

    def __init__(self, values: int = MAX_FREE_VALUES, size: int = MAX_FREE_BYTES) -> None:
        self._values = values
        self._bytes = size

    def take(self, path: str, text: str = "") -> None:
        """Raise WireError for a value that no longer fits."""
        self._values -= 1
        self._bytes -= len(text)
        if self._values < 0 or self._bytes < 0:
            raise _invalid(path, "the message's texts and free-form parts are too large")


def storable(message: T, path: str = "", room: _Room | None = None) -> T:
    """Convert free-form parts to what every database and JSON reader accepts.

    NUL characters, NaN, integers beyond 64 bits are replaced; deep nesting is an error, and so are
    more than MAX_FREE_VALUES or MAX_FREE_BYTES.
    """
    values = _storable(msgspec.to_builtins(message), path, 0, room or _Room())
    return msgspec.convert(values, type(message))


def _storable_line(line: ConsoleLine, path: str, room: _Room) -> ConsoleLine:
    room.take(path, line.text)
    text = line.text.replace("\0", "\ufffd").replace("\n", " ")
    return line if text == line.text else msgspec.structs.replace(line, text=text)


def _check_columns(chunk: ReadChunk, path: str) -> None:
    """Check that readings are finite, and sizes and counts non-negative integers.

    Users' scalars are free.
    """
    _check_steps(chunk, f"{path}.step")
    checked = [
        name for name in chunk.stats if chunk.stream != SCALARS_STREAM or name in ("step", "time_s")
    ]
    floats = chunk.arrays.floats
    for name in checked:
        if not name.endswith(("_bytes", "_total")):
            continue
        if name in floats.names and floats.has_any(name):
            raise _invalid(f"{path}.{name}", "sizes and counts must be integers")
        minimum = chunk.stats[name][0]
        if minimum is not None and minimum < 0:
            raise _invalid(f"{path}.{name}", f"{minimum} is negative")
    for name, value in floats.first_not_finite().items():
        if name in checked:
            raise _invalid(f"{path}.{name}", f"{value} is not a valid reading: omit unknown values")


def _check_steps(chunk: ReadChunk, path: str) -> None:
    if "step" not in chunk.stats:
        raise _invalid(path, "a chunk must have a column `step`")
    ints = chunk.arrays.ints
    if "step" not in ints.names or not ints.has_all("step"):
        raise _invalid(path, "every sample must have an integer step")
    steps = ints.column("step")
    if steps[0] < 0:
        raise _invalid(path, f"{steps[0]} is negative")
    decreases = np.flatnonzero(steps[1:] < steps[:-1])
    if decreases.size:
        before, after = steps[decreases[0]], steps[decreases[0] + 1]
        raise _invalid(path, f"{after} follows {before}: steps must not decrease within a chunk")


def _check_sizes(batch: Batch) -> list[ChunkHeader | None]:
    """Check the sizes that chunks declare, before any is decompressed; return their headers."""
    headers: list[ChunkHeader | None] = []
    size = columns = 0
    for index, chunk in enumerate(batch.chunks):
        columns += len(chunk.columns or ())
        header = None
        if chunk.packed is not None and chunk.columns is None:
            header = _header_of(chunk.packed, f"chunks[{index}]")
            size += header.raw_bytes
            columns += len(header.columns)
        if size > MAX_BATCH_RAW_BYTES or columns > MAX_BATCH_COLUMNS:
            raise _invalid(
                f"chunks[{index}]",
                f"the chunks of a batch have at most {MAX_BATCH_RAW_BYTES} bytes decompressed "
                f"and {MAX_BATCH_COLUMNS} columns",
            )
        headers.append(header)
    return headers


def _header_of(packed: bytes, path: str) -> ChunkHeader:
    try:
        return read_header(packed)
    except WireError as error:
        raise _invalid(f"{path}.{error.field}", str(error)) from error


def _check_dropped(dropped: Mapping[str, int]) -> None:
    if len(dropped) > MAX_REASONS:
        raise _invalid("dropped_samples", f"more than {MAX_REASONS} reasons")
    for reason in dropped:
        if not 0 < len(reason) <= MAX_REASON_LENGTH or "\0" in reason:
            raise _invalid(
                "dropped_samples", f"a reason must have 1 to {MAX_REASON_LENGTH} characters"
            )


def _storable(value: Any, path: str, depth: int, room: _Room) -> Any:
    if depth > MAX_DEPTH:
        raise _invalid(path, f"nested more than {MAX_DEPTH} levels deep")
    room.take(path, value if isinstance(value, str) else "")
    if isinstance(value, str):
        # PostgreSQL's text cannot contain NUL
        return value.replace("\0", "\ufffd")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # SQLite's integers have 64 bits
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    if isinstance(value, dict):
        return {
            _storable(key, path, depth, room): _storable(
                item, f"{path}.{key}".lstrip("."), depth + 1, room
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
        return [_storable(item, f"{path}[{index}]", depth + 1, room) for index, item in items]
    return value


def _check_viewer(packed: bytes) -> None:
    """Decompress in chunks, without keeping them: a small body can decompress to any size."""
    decompressor = zlib.decompressobj()
    size = 0
    rest = packed
    try:
        while rest and not decompressor.eof and size <= MAX_VIEWER_BYTES:
            size += len(decompressor.decompress(rest, _CHUNK_BYTES))
            rest = decompressor.unconsumed_tail
    except zlib.error as error:
        raise _invalid("viewer", f"not valid zlib: {error}") from error
    if size > MAX_VIEWER_BYTES:
        raise _invalid("viewer", f"larger than {MAX_VIEWER_BYTES} bytes uncompressed")
    if not decompressor.eof:
        raise _invalid("viewer", "incomplete")


def _invalid(field: str, what: str) -> WireError:
    return WireError(f"{field}: {what}", field=field)
