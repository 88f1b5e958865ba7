"""Samples of a whole run on the wire: chunks as the store has them, one frame each.

1. A frame is its length (uint32, little endian) and msgpack of a `SampleFrame`.
2. A frame of length 0 ends the stream: one that breaks off is not taken for a whole one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import msgspec

from memagent.errors import WireError
from memagent.wire.columns import MAX_RAW_BYTES

MEDIA_TYPE = "application/vnd.memagent.samples"
END = bytes(4)
MAX_FRAME_BYTES = MAX_RAW_BYTES + 2**20
_encode = msgspec.msgpack.Encoder().encode


class SampleFrame(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of one rank and device in one launch, without its first `known_rows` samples.

    `is_deflated`: the whole chunk is compressed by zlib, for readers without zstd. `packed` is
    empty if retention has deleted the samples.
    """

    rank: int
    attempt: int
    device: str
    known_rows: int
    packed: bytes
    is_deflated: bool = False

    def chunk(self) -> bytes:
        """Return the packed chunk. Raises WireError if it's damaged or too large."""
        if not self.is_deflated:
            return self.packed
        inflater = zlib.decompressobj()
        try:
            chunk = inflater.decompress(self.packed, MAX_FRAME_BYTES)
        except zlib.error as error:
            raise WireError(f"a frame of samples cannot be decompressed: {error}") from error
        if not inflater.eof:
            raise WireError("a frame of samples is truncated or too large")
        return chunk


def deflate(chunk: bytes) -> bytes:
    return zlib.compress(chunk, 1)


def encode_frame(frame: SampleFrame) -> bytes:
    body = _encode(frame)
    return len(body).to_bytes(4, "little") + body


def decode_frames(pieces: Iterable[bytes]) -> Iterator[SampleFrame]:
    """Yield the frames of a stream. Raises WireError if it's no stream, or ends early."""
    buffer = bytearray()
    decode = msgspec.msgpack.Decoder(SampleFrame).decode
    for piece in pieces:
        buffer += piece
        offset = 0
        while len(buffer) - offset >= 4:
            end = offset + 4 + int.from_bytes(buffer[offset : offset + 4], "little")
            if end == offset + 4:
                return
            if end - offset > MAX_FRAME_BYTES:
                raise WireError("a frame of samples is too large: is it a memagent server?")
            if end > len(buffer):
                break
            try:
                yield decode(buffer[offset + 4 : end])
            except msgspec.MsgspecError as error:
                raise WireError(f"cannot read a frame of samples: {error}") from error
            offset = end
        del buffer[:offset]
    raise WireError("the samples broke off before their end: read them again")
