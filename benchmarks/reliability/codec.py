"""Fuzz the codec, guided by coverage: bodies and packed chunks, from bytes that atheris makes.

`python -m benchmarks.reliability.codec [-runs=N] [FOLDER]` needs `pip install atheris` and takes
libFuzzer's options; FOLDER keeps what reached new code. Each input must be refused as malformed, or be
read alike by the agent's codec and the server's. Anything else ends the run with a traceback.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from inspect import isfunction
from pathlib import Path

import msgspec

from benchmarks.reliability.expected_samples import batch_of
from memagent.arrays.chunk_arrays import read_arrays
from memagent.errors import WireError
from memagent.wire import codec, columns
from memagent.wire.codec import JSON, MSGPACK
from memagent.wire.columns import MAGIC, ChunkHeader, ColumnHeader, unpack
from memagent.wire.fields import kind_of
from memagent.wire.messages import Batch, Chunk
from memagent_server.http.problems import Problem
from memagent_server.ingest import body, message_limits, validate
from memagent_server.ingest.body import read_packed
from memagent_server.ingest.validate import check_batch
from memagent_server.store import chunks

READERS = (codec, columns, body, message_limits, validate, chunks)
"""The modules whose branches guide the fuzzer."""
_NAMES = ("step", "time_s", "allocated_bytes", "loss", "segments", "step_s", "ooms_total", "lr")
_BODIES = ((MSGPACK, ""), (JSON, ""), (MSGPACK, "zstd"), (MSGPACK, "gzip"), (JSON, "deflate"))


def take(data: bytes) -> bool:
    """Read one input, whose first byte says as what. Return False if it is refused as malformed.

    Raises AssertionError if agent and server read it differently.
    """
    how, rest = data[0] if data else 0, data[1:]
    try:
        if how < 0x80:
            _read_body(rest, *_BODIES[how % len(_BODIES)])
        else:
            compare(rest if how < 0xA0 else chunk_of(rest))
    except (WireError, Problem):
        return False
    return True


def compare(packed: bytes) -> None:
    """Read a chunk with both codecs. Raises WireError if the server refuses it."""
    arrays = read_arrays(packed)
    theirs = {
        name: block.listed(name) for block in (arrays.ints, arrays.floats) for name in block.names
    }
    # by repr: NaN differs from itself, and 3.0 from 3
    assert {name: repr(values) for name, values in unpack(packed).items()} == {
        name: repr(values) for name, values in theirs.items()
    }


def chunk_of(data: bytes) -> bytes:
    """Return a chunk whose header fits its payload, which mutations of bytes would never find."""
    rows, count, missing, *payload = data.ljust(3, b"\0")
    rows, names = 1 + rows % 16, _NAMES[: 1 + count % len(_NAMES)]
    header = [
        ColumnHeader(name, kind_of(name), bool(missing >> at & 1)) for at, name in enumerate(names)
    ]
    size = sum(8 * rows + (rows + 7) // 8 * column.has_missing for column in header)
    raw = bytes(payload).ljust(size, b"\0")[:size]
    head = msgspec.msgpack.encode(ChunkHeader(rows, header, "zlib", size, zlib.crc32(raw)))
    return MAGIC + len(head).to_bytes(4, "little") + head + zlib.compress(raw, 0)


def seeds() -> list[bytes]:
    """Return inputs that are accepted: the fuzzer changes these."""
    batch = batch_of("fuzz", 0, 0, 1e9)
    message = msgspec.structs.replace(
        batch, chunks=[Chunk(stream="host", columns={"step": [1, 2], "loss": [0.5, None]})]
    )
    chunk = batch.chunks[0].packed or b""
    bodies = [codec.encode(batch), msgspec.json.encode(message)]
    return [b"\0" + bodies[0], b"\1" + bodies[1], b"\x80" + chunk, b"\xa0\x07\x06\x15" + bytes(8)]


def _read_body(data: bytes, content_type: str, encoding: str) -> None:
    check_batch(read_packed(data, Batch, content_type, encoding))


def main() -> None:
    if "--help" in sys.argv:
        print(__doc__)
        return
    import atheris

    for module in READERS:
        for function in vars(module).values():
            if isfunction(function) and function.__module__ == module.__name__:
                atheris.instrument_func(function)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(seeds()):
            Path(folder, str(number)).write_bytes(data)
        atheris.Setup([*sys.argv, folder], take)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
