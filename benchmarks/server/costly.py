"""Requests of at most 8 MiB that cost a server as much as possible: shapes at the bounds of each
message, and seeded mixtures.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import zstandard

from memagent.wire.columns import MAGIC, ChunkHeader, ColumnHeader
from memagent.wire.messages import VIEWER_BYTES
from memagent_server.http.asgi import MAX_SENT_BYTES
from memagent_server.ingest import body as limits
from memagent_server.ingest.message_limits import MAX_JSON_BYTES, MAX_VALUES
from memagent_server.ingest.validate import (
    MAX_BATCH_COLUMNS,
    MAX_BATCH_RAW_BYTES,
    MAX_DEPTH,
    MAX_FREE_BYTES,
    MAX_FREE_VALUES,
    MAX_SNAPSHOT_BYTES,
)

RUN = "costly"
_CHUNKS, _EVENTS, _STACKS, _TENSORS, _SUSPECTS = 256, 1_000, 20_000, 1_000, 50
_START, _BATCHES = "/api/v1/runs", f"/api/v1/runs/{RUN}/batches"
_SNAPSHOTS, _PREDICTIONS = f"/api/v1/runs/{RUN}/snapshots", f"/api/v1/runs/{RUN}/predictions"


@dataclass(frozen=True)
class Request:
    """A request and the headers that its body needs."""

    name: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"

    @classmethod
    def of(cls, name: str, path: str, message: Any, *, form: str = "msgpack") -> Request:
        """Encode a message. Compress it if only that makes it small enough to be sent."""
        plain = json.dumps(message).encode() if form == "json" else msgspec.msgpack.encode(message)
        return cls.of_bytes(name, path, plain, form)

    @classmethod
    def of_bytes(cls, name: str, path: str, plain: bytes, form: str = "msgpack") -> Request:
        headers = {"Content-Type": f"application/{form}"}
        if len(plain) <= MAX_SENT_BYTES:
            return cls(name, path, plain, headers)
        # several frames of one content: the ratio of unpacked to sent bytes is bounded
        packed = zstandard.compress(plain, 1)
        packed += _skippable(len(plain) // limits.MAX_RATIO + 1 - len(packed))
        return cls(name, path, packed, {**headers, "Content-Encoding": "zstd"})


def shapes() -> Iterator[Request]:
    """Yield the shapes, in an order in which each is accepted or refused for itself."""
    yield from _starts()
    yield from _batches()
    yield from _snapshots()
    yield from _others()
    yield from _reads()


def mixtures(count: int) -> Iterator[Request]:
    """Yield messages with values of random kinds, sizes and nesting in every field."""
    for seed in range(count):
        source = random.Random(seed)
        path, message = source.choice(
            [
                (_START, {"run_id": RUN, "config": {}, "environment": {}, "tags": []}),
                (_BATCHES, {"seq": 1_000 + seed, "chunks": [], "events": [], "unknown": 0}),
                (
                    _SNAPSHOTS,
                    {"seq": 1_000 + seed, "method": "census", "stacks": [], "tensors": []},
                ),
                (_PREDICTIONS, {"method": "trace", "peak_allocated_bytes": 1, "assumptions": {}}),
            ]
        )
        name = source.choice([*message][1:])
        message = {**message, name: _random_value(source)}
        yield Request.of(
            f"mixture {seed}: {name}", path, message, form=source.choice(["json", "msgpack"])
        )


def _starts() -> Iterator[Request]:
    def start(name: str, form: str = "msgpack", **fields: Any) -> Request:
        return Request.of(f"start: {name}", _START, {"run_id": RUN, **fields}, form=form)

    yield start("plain")
    yield start("a config of all values", config={"a": list(range(MAX_FREE_VALUES - 9))})
    keys = {f"key{n}": {f"deep{n}": [None]} for n in range(MAX_FREE_VALUES // 5)}
    yield start("a config of all keys", config=keys)
    yield start("a config one value too large", config={"a": [[]] * MAX_FREE_VALUES})
    yield start("a config of empty lists", config={"a": [[]] * (MAX_VALUES - 9)})
    yield start("a config of empty maps", "json", config={"a": [{}] * (MAX_VALUES // 2 - 9)})
    yield start("long text", config={"a": "x" * (MAX_FREE_BYTES - 100)})
    yield start("long wide text", config={"a": "\U0001f600" * (MAX_FREE_BYTES - 100)})
    yield start(
        "text beyond its bound", config={"a": "\U0001f600" * (limits.MAX_BODY_BYTES // 4 - 99)}
    )
    yield start(
        "nested to the bound", config=_nested(MAX_DEPTH - 2, MAX_FREE_VALUES // MAX_DEPTH - 9)
    )
    yield start("huge integers", config={"a": [2**63 + n for n in range(MAX_FREE_VALUES - 9)]})
    yield start("huge integers as JSON", "json", config={"a": [10**36] * (MAX_JSON_BYTES // 39)})
    yield start("one huge integer as JSON", "json", config={"a": 10**4_000})
    yield start("NaN", "json", config={"a": [float("nan")] * (MAX_VALUES // 2)})
    devices = [{"id": f"device {n}", "kind": "cuda", "name": "x"} for n in range(64)]
    tags = [f"tag {n}".ljust(200, "t") for n in range(100)]
    yield start("64 devices and 100 tags", devices=devices, tags=tags)
    yield Request.of_bytes("start: nesting", _START, b"\x91" * (MAX_VALUES - 1))
    yield Request.of_bytes("start: nesting as JSON", _START, b"[" * (MAX_VALUES // 2), "json")


def _batches() -> Iterator[Request]:
    seq = iter(range(1_000_000))

    def batch(name: str, form: str = "msgpack", **fields: Any) -> Request:
        return Request.of(f"batch: {name}", _BATCHES, {"seq": next(seq), **fields}, form=form)

    rows = MAX_BATCH_RAW_BYTES // 8 // 40 // 8
    for present in (False, True):
        chunks = [_packed(n, rows - 2_000 * present, 40, present) for n in range(8)]
        text = "with gaps" if present else "whole"
        yield batch(f"32 MiB in 8 chunks, {text}", chunks=chunks)
    wide = MAX_BATCH_COLUMNS // 10
    rows = MAX_BATCH_RAW_BYTES // 8 // wide // 10
    yield batch("10 streams of 1,000 columns", chunks=[_packed(n, rows, wide) for n in range(10)])
    names = [_packed(n, 4, wide, names=f"new{n}_") for n in range(10)]
    yield batch("10,000 distinct columns", chunks=names)
    many = MAX_BATCH_COLUMNS // _CHUNKS
    yield batch("256 streams", chunks=[_packed(n, 4, many) for n in range(_CHUNKS)])
    rows = MAX_BATCH_RAW_BYTES // 8 // many // _CHUNKS
    yield batch("256 streams of 32 MiB", chunks=[_packed(n, rows, many) for n in range(_CHUNKS)])
    count = (MAX_VALUES - 5_000) // 1_000
    columns = {f"c{n}": [n + 0.5] * count for n in range(999)}
    plain = [{"stream": "plain", "columns": {"step": list(range(count)), **columns}}]
    yield batch("columns of all values", chunks=plain)
    columns = {f"c{n}_bytes": [float(n)] * count for n in range(999)}
    retyped = [
        {"stream": "plain", "columns": {"step": [float(n) for n in range(count)], **columns}}
    ]
    yield batch("integers as floats", seq=1.0, chunks=retyped)
    wrong = [{"stream": "plain", "columns": {**columns, "step": ["x"]}}]
    yield batch("a wrong value among all", chunks=wrong)
    yield batch("a wrong value among all, as JSON", "json", chunks=wrong)
    keys = {f"k{n}": [1] for n in range(12_000)}
    located = [{"stream": "plain", "columns": {**keys, "step": ["x"]}}]
    yield batch("a wrong value among many, located", "json", chunks=located)
    size = MAX_FREE_VALUES // _EVENTS - 8
    events = [{"kind": f"e{n}", "step": n, "data": {"a": [1] * size}} for n in range(_EVENTS)]
    yield batch("1,000 events of all values", events=events)
    events = [{"kind": "oom", "data": {"a": "x" * 1_000}} for _ in range(_EVENTS)]
    yield batch("1,000 events of all bytes", events=events)
    events = [
        {"kind": "oom", "data": {"a": [None] * (MAX_VALUES // _EVENTS - 9)}} for _ in range(_EVENTS)
    ]
    yield batch("1,000 events beyond the bound", events=events)
    yield batch("an unknown field", unknown=["x" * 120] * (MAX_VALUES - 50))
    yield batch("an unknown field of integers", unknown=[2**63] * (MAX_VALUES - 50))
    yield batch("an unknown text", unknown="x" * (limits.MAX_BODY_BYTES - 99))
    yield batch("too many values", unknown=[0] * (limits.MAX_BODY_BYTES - 99))
    yield Request.of_bytes("batch: zeros", _BATCHES, bytes(limits.MAX_BODY_BYTES))
    yield Request.of_bytes("batch: JSON of spaces", _BATCHES, b" " * MAX_JSON_BYTES, "json")


def _snapshots() -> Iterator[Request]:
    seq = iter(range(1_000_000))

    def snapshot(name: str, **fields: Any) -> Request:
        message = {"method": "history", "seq": next(seq), **fields}
        return Request.of(f"snapshot: {name}", _SNAPSHOTS, message)

    frames = (MAX_VALUES - 5_000) // _STACKS - 6
    stacks = [{"frames": [f"f{n}"] * frames, "size_bytes": n} for n in range(_STACKS)]
    yield snapshot("all values in stacks", stacks=stacks)
    text = MAX_SNAPSHOT_BYTES // _STACKS // frames - 2
    stacks = [
        {"frames": [f"{n}".ljust(text, "f")] * frames, "size_bytes": n} for n in range(_STACKS)
    ]
    yield snapshot("all values and all bytes in stacks", stacks=stacks)
    tensors = [
        {f"k{i}": [i] for i in range(MAX_VALUES // _TENSORS // 3 - 2)} for _ in range(_TENSORS)
    ]
    yield snapshot("all values in tensors", tensors=tensors)
    noise = random.Random(0).randbytes(MAX_SENT_BYTES // 2 - 2_000).hex()
    yield snapshot("text that does not compress", tensors=[{"a": noise}])
    suspects = [{"kind": "list", "holder": "h" * 20_000, "fix": "f" * 20_000}] * _SUSPECTS
    notes = ["\U0001f600" * 20_000] * 50
    yield snapshot("suspects with long texts", suspects=suspects, notes=notes)
    page = np.random.default_rng(0).bytes(VIEWER_BYTES - 4_000)
    yield snapshot("a viewer that does not compress", viewer=zlib.compress(page, 0))
    yield snapshot("a viewer of 64 MiB", viewer=zlib.compress(bytes(64 * 2**20), 9))
    bomb = zlib.compress(bytes(900 * 2**20), 9)
    yield snapshot("a viewer that is a bomb", viewer=bomb)


def _others() -> Iterator[Request]:
    def prediction(name: str, **fields: Any) -> Request:
        message = {"method": "trace", "peak_allocated_bytes": 1, **fields}
        return Request.of(f"prediction: {name}", _PREDICTIONS, message)

    named = {f"component {n}": n for n in range(MAX_FREE_VALUES // 2 - 20)}
    yield prediction("all values in components", components=named)
    yield prediction(
        "components beyond the bound", components={f"c{n}": n for n in range(MAX_VALUES // 2 - 9)}
    )
    intervals = {f"level {n}": (n, n) for n in range(MAX_FREE_VALUES // 4 - 20)}
    yield prediction("all values in intervals", intervals=intervals)
    advice = [{"change": "c" * 200, "saving_bytes": 1, "code": "x" * 20_000}] * 50
    yield prediction("50 changes", advice=advice, assumptions={"a": [1] * 10_000})
    finish = {"status": "failed", "rank": 1, "error": "e" * 20_000}
    yield Request.of("finish: a long error", f"/api/v1/runs/{RUN}/finish", finish)
    config = {"model_type": "llama", "a": [1] * (MAX_VALUES - 99)}
    yield Request.of("estimate: a config of all values", "/api/v1/estimate", {"config": config})
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    yield Request("login: a form of all names", "/login", b"a&" * (128 * 1024 - 1), form)
    yield Request("login: a form of escapes", "/login", b"token=" + b"%41" * (80 * 1024), form)


def _reads() -> Iterator[Request]:
    """Yield requests for what the others have stored, without exports: these pause for others."""
    keys = {f"key{n}": n for n in range(MAX_FREE_VALUES // 3)}
    yield Request.of("start: another", _START, {"run_id": f"{RUN}-2", "config": keys})
    of_run = (
        "",
        "/series?fields=*&points=10000",
        "/ranks?points=1000",
        "/events?limit=200",
        "/snapshots",
    )
    both = f"compare?runs={RUN},{RUN}-2"
    others = ("/", f"/runs/{RUN}", f"/{both}", "/api/v1/runs", f"/api/v1/{both}", "/metrics")
    paths = (*(f"/api/v1/runs/{RUN}{path}" for path in of_run), *others)
    for path in paths:
        yield Request(f"GET {path}", path, method="GET")


def _packed(
    number: int, rows: int, columns: int, present: bool = False, names: str = "c"
) -> dict[str, Any]:
    """Return a chunk with increasing steps and counters that are all alike, which compress best."""
    header = [
        ColumnHeader("step", "int"),
        *(ColumnHeader(f"{names}{n}", "float", present) for n in range(columns - 1)),
    ]
    bitmap = np.full((rows + 7) // 8, 0x55, np.uint8).tobytes() if present else b""
    steps = np.ones(rows, "<i8").view(np.uint8).reshape(rows, 8).T.tobytes()
    raw = steps + (bitmap + bytes(8 * rows)) * (columns - 1)
    head = msgspec.msgpack.encode(ChunkHeader(rows, header, "zstd", len(raw), zlib.crc32(raw)))
    packed = MAGIC + len(head).to_bytes(4, "little") + head + zstandard.compress(raw, 1)
    return {"stream": f"stream {number}", "packed": packed}


def _nested(depth: int, width: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return {"a": [value] * width}


def _random_value(source: random.Random) -> Any:
    """Return a value of up to the bounds whose items are all of one random kind."""
    count = source.choice([MAX_FREE_VALUES, MAX_VALUES]) - source.randrange(2_000)
    kind = source.randrange(7)
    size = source.choice([1, 10, 80])
    item: Any = [
        None,
        "x" * size,
        "\U0001f600" * size,
        {"k" * size: None},
        [[]],
        source.uniform(-1e300, 1e300),
        source.randrange(-(2**63), 2**64),
    ][kind]
    items = [item] * (count // (3 if kind in (3, 4) else 1))
    if source.random() < 0.5:
        return items
    return {
        f"{number:x}".ljust(size, "k"): value for number, value in enumerate(items[: count // 2])
    }


def _skippable(size: int) -> bytes:
    """Return a frame of zstd that a decompressor skips."""
    return (
        b""
        if size <= 8
        else b"\x50\x2a\x4d\x18" + (size - 8).to_bytes(4, "little") + bytes(size - 8)
    )
