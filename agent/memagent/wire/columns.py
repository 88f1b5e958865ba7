"""Columns of samples, packed small: delta or xor, byte shuffle, one compression over all.

Layout of a chunk (little endian):

1. magic `MAC1`, then the length of the header as uint32
2. header: msgpack of `ChunkHeader`, which describes everything that follows
3. payload: per column a bitmap of present values (only where some are missing), then 8 bytes a value:
   int64 columns as the difference to the row before, float64 columns as the xor of the bit patterns with the row before,
   both byte-shuffled (all first bytes, then all second bytes, ...), and the whole compressed by `codec`
   (`none`: the server compresses the whole chunk, header and all)

Memory readings repeat or move little from step to step, so nearly all bytes are zero after steps 1 to 3: 19 to 42 bytes a
sample of 20 counters. Pure Python on `array`: the agent must not need numpy.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import sub, xor
from typing import Any, Literal

import msgspec

from memagent.errors import WireError
from memagent.wire.fields import COLUMN_NAME, Kind, kind_of

try:
    import zstandard
except ImportError:  # the agent's environment need not have it
    zstandard = None  # type: ignore[assignment]

MAGIC = b"MAC1"
MAX_ROWS = 100_000
MAX_COLUMNS = 1_000
MAX_RAW_BYTES = 64 * 2**20
MAX_INT = 2**62
"""Ints must be smaller than this in magnitude, so that a difference of two of them still fits 64 bits."""

Value = int | float | None
Codec = Literal["zlib", "zstd", "none"]

DEFAULT_CODEC: Codec = "zlib" if zstandard is None else "zstd"


class Column(msgspec.Struct, frozen=True, array_like=True):
    """One column's place in the payload: its name, kind, and whether a bitmap of present values precedes it."""

    name: str
    kind: Kind
    has_missing: bool = False


class ChunkHeader(msgspec.Struct, frozen=True):
    """What a chunk says of itself. `raw_bytes` is the payload's size before compression, `crc32` the raw payload's checksum."""

    rows: int
    columns: list[Column]
    codec: Codec
    raw_bytes: int
    crc32: int
    first_step: int | None = None
    last_step: int | None = None
    version: int = 1


_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(ChunkHeader)


def pack(
    columns: Mapping[str, Sequence[Value]],
    *,
    codec: Codec = DEFAULT_CODEC,
    kind_of: Callable[[str], Kind] = kind_of,
) -> bytes:
    """Pack columns of equal length into one chunk; `kind_of` says what a column of a name holds.

    Raises WireError, naming the column, for unequal lengths, names that are no column name, and values that do not fit.
    """
    rows = len(next(iter(columns.values()))) if columns else 0
    if not 0 < rows <= MAX_ROWS:
        raise WireError(f"a chunk holds 1 to {MAX_ROWS} rows, this one {rows}", field="columns")
    described: list[Column] = []
    parts: list[bytes] = []
    for name, values in columns.items():
        if len(values) != rows:
            raise WireError(
                f"{name} has {len(values)} values where the first column has {rows}", field=name
            )
        if not COLUMN_NAME.fullmatch(name):
            raise WireError(
                f"{name!r} is no column name: it must match {COLUMN_NAME.pattern}", field=name
            )
        kind = kind_of(name)
        missing = None in values
        described.append(Column(name, kind, missing))
        if missing:
            parts.append(_bitmap(values))
            values = _filled(values)  # noqa: PLW2901
        parts.append(_shuffle(_differences(name, kind, values)))
    raw = b"".join(parts)
    steps = [step for step in columns.get("step", ()) if step is not None]
    header = ChunkHeader(
        rows=rows,
        columns=described,
        codec=codec,
        raw_bytes=len(raw),
        crc32=zlib.crc32(raw),
        first_step=int(steps[0]) if steps else None,
        last_step=int(steps[-1]) if steps else None,
    )
    head = _header_encoder.encode(header)
    return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, _compress(raw, codec)))


def read_header(chunk: bytes) -> ChunkHeader:
    """The header alone, checked for sanity but not against the payload. Raises WireError."""
    return _split(chunk)[0]


def read_payload(chunk: bytes) -> tuple[ChunkHeader, bytes]:
    """The header, and the payload as step 3 of the layout has it: decompressed, its size and checksum checked.

    Raises WireError for anything but a whole and sound chunk; never allocates more than the header's checked size.
    """
    header, body = _split(chunk)
    return header, _decompress(memoryview(chunk)[body:], header)


def unpack(chunk: bytes, *, only: Container[str] | None = None) -> dict[str, list[Value]]:
    """Columns of a chunk as lists; with `only`, just those of them that the chunk has.

    Raises WireError for anything but a whole and sound chunk; never allocates more than the header's checked size.
    """
    header, raw = read_payload(chunk)
    out: dict[str, list[Value]] = {}
    at = 0
    bitmap_bytes, column_bytes = (header.rows + 7) // 8, header.rows * 8
    for column in header.columns:
        bitmap = raw[at : at + bitmap_bytes] if column.has_missing else None
        at += bitmap_bytes if column.has_missing else 0
        if only is None or column.name in only:
            values = _restored(column.kind, raw[at : at + column_bytes])
            out[column.name] = _with_missing(values, bitmap) if bitmap is not None else values
        at += column_bytes
    return out


def _split(chunk: bytes) -> tuple[ChunkHeader, int]:
    if chunk[:4] != MAGIC or len(chunk) < 8:
        raise WireError(
            "these bytes are no chunk of samples: they do not begin with MAC1", field="packed"
        )
    body = 8 + int.from_bytes(chunk[4:8], "little")
    try:
        header = _header_decoder.decode(chunk[8:body])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"the chunk's header cannot be read: {error}", field="packed") from error
    if header.version != 1:
        raise WireError(
            f"chunk version {header.version} is newer than this program knows; upgrade it",
            field="packed",
        )
    if not (0 < header.rows <= MAX_ROWS and 0 < len(header.columns) <= MAX_COLUMNS):
        raise WireError(
            f"a chunk of {header.rows} rows and {len(header.columns)} columns is out of bounds",
            field="packed",
        )
    missing = sum(column.has_missing for column in header.columns)
    expected = len(header.columns) * header.rows * 8 + missing * ((header.rows + 7) // 8)
    if header.raw_bytes != expected or expected > MAX_RAW_BYTES:
        raise WireError(
            f"the chunk's payload must hold {expected} bytes (at most {MAX_RAW_BYTES})",
            field="packed",
        )
    names = [column.name for column in header.columns]
    if len(set(names)) != len(names) or not all(COLUMN_NAME.fullmatch(name) for name in names):
        raise WireError("the chunk's column names must be distinct and well formed", field="packed")
    return header, body


def _differences(
    name: str, kind: Kind, values: Any
) -> bytes:  # of one kind, which only array() can check
    try:
        if kind == "float":
            bits = array("q", array("d", values).tobytes())
            moved = array("q", map(xor, bits, chain((0,), bits)))
        else:
            ints: array[int] = array("q", values)
            if max(ints) >= MAX_INT or min(ints) <= -MAX_INT:
                raise OverflowError
            moved = array("q", map(sub, ints, chain((0,), ints)))
    except (TypeError, OverflowError) as error:
        raise WireError(
            f"{name} must hold {kind} values of less than 2**62 in magnitude", field=name
        ) from error
    if sys.byteorder == "big":
        moved.byteswap()
    return moved.tobytes()


def _restored(kind: Kind, shuffled: bytes) -> list[Value]:
    rows = len(shuffled) // 8
    buffer = bytearray(len(shuffled))
    for byte in range(8):
        buffer[byte::8] = shuffled[byte * rows : (byte + 1) * rows]
    moved: array[int] = array("q", bytes(buffer))
    if sys.byteorder == "big":
        moved.byteswap()
    if kind == "int":
        ints: Iterable[int] = accumulate(moved)
        return [*ints]
    bits: Iterable[int] = accumulate(moved, xor)
    floats: array[float] = array("d", array("q", bits).tobytes())
    return [*floats]


def _shuffle(data: bytes) -> bytes:
    return b"".join(data[byte::8] for byte in range(8))


def _bitmap(values: Sequence[Value]) -> bytes:
    bits = 0
    for row, value in enumerate(values):
        if value is not None:
            bits |= 1 << row
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _filled(values: Sequence[Value]) -> list[Value]:
    """A missing value repeats the one before, which costs nothing after the difference is taken."""
    filled: list[Value] = []
    last: Value = 0
    for value in values:
        last = last if value is None else value
        filled.append(last)
    return filled


def _with_missing(values: list[Value], bitmap: bytes) -> list[Value]:
    bits = int.from_bytes(bitmap, "little")
    return [value if bits >> row & 1 else None for row, value in enumerate(values)]


def _compress(raw: bytes, codec: Codec) -> bytes:
    if codec == "none":
        return raw
    if codec == "zlib":
        return zlib.compress(raw, 1)
    if zstandard is None:
        raise WireError("codec zstd needs the package zstandard", field="codec")
    packed: bytes = zstandard.ZstdCompressor(level=1).compress(raw)
    return packed


def _decompress(payload: memoryview, header: ChunkHeader) -> bytes:
    """Never yields more than the header's size, whatever the payload claims: a bomb fails, it does not unfold."""
    try:
        if header.codec == "none":
            raw, whole = bytes(payload), True
        elif header.codec == "zlib":
            inflater = zlib.decompressobj()
            raw = inflater.decompress(payload, header.raw_bytes + 1)
            whole = inflater.eof
        else:
            raw = _unpack_zstd(payload, header.raw_bytes)
            whole = True
    except WireError:
        raise
    except Exception as error:  # zlib.error, ZstdError: the libraries' own trees
        raise WireError(
            f"the chunk's payload cannot be decompressed: {error}", field="packed"
        ) from error
    if not whole or len(raw) != header.raw_bytes or zlib.crc32(raw) != header.crc32:
        raise WireError(
            "the chunk is truncated or damaged: its size or checksum is off", field="packed"
        )
    return raw


def _unpack_zstd(payload: memoryview, most_bytes: int) -> bytes:
    if zstandard is None:
        raise WireError(
            "this chunk is compressed with zstd: install the package zstandard", field="packed"
        )
    if (
        zstandard.frame_content_size(payload) > most_bytes
    ):  # the library would believe it, and allocate that much
        return b""
    raw: bytes = zstandard.ZstdDecompressor().decompress(payload, max_output_size=most_bytes)
    return raw
