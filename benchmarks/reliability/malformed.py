"""Malformed bodies: valid messages with errors in structure, chunks, bytes, compression or labels.

The server must answer each with 2xx or 4xx, name the error, continue, use no more memory, and store
nothing of a refused body.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psutil
import urllib3
import zstandard
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.reliability.expected_samples import STREAMS, batch_of
from memagent.wire.codec import JSON, MSGPACK
from memagent.wire.columns import MAGIC, ChunkHeader, ColumnHeader
from memagent.wire.messages import (
    Batch,
    Device,
    Event,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
    Stack,
    Suspect,
)
from memagent_server.http.problems import PROBLEM_JSON
from memagent_server.ingest.body import read_packed

RUN = "malformed"
MOST_RSS_BYTES = 600 * 2**20
"""Limit of a web process; some 90 MiB are code."""
LOOK_EVERY = 50

_DEVICE = Device(id="host", kind="host", name="box", limit_bytes=2**35)
_MESSAGES: dict[str, tuple[str, Any]] = {
    "start": ("", RunStart(run_id=RUN, config={"lr": 0.1, "deep": {"er": [1, None]}}, tags=["a"], devices=[_DEVICE])),
    "batch": (f"/{RUN}/batches", msgspec.structs.replace(batch_of(RUN, 0, 0, 1e9), dropped_samples={"queue_full": 3},
              events=[Event(kind="oom", step=3, time_s=1e9, data={"size": 5})])),
    "prediction": (f"/{RUN}/predictions", PredictionMessage(method="trace", peak_allocated_bytes=2**30, components={"gradients": 7})),
    "snapshot": (f"/{RUN}/snapshots", SnapshotMessage(method="census", suspects=[Suspect(kind="list", holder="kept", line=4)],
                 stacks=[Stack(frames=["f (a.py:1)"], size_bytes=9)])),
    "finish": (f"/{RUN}/finish", Finish(status="failed", step=4, error="RuntimeError: x")),
}  # fmt: skip


@dataclass(frozen=True)
class Post:
    """A request and the mutations applied to it, for the report of a failure."""

    kind: str
    body: bytes
    content_type: str
    encoding: str

    @property
    def path(self) -> str:
        return f"/api/v1/runs{_MESSAGES[self.kind][0]}"


@dataclass
class Siege:
    """Result of many posts: responses by status, samples by batch key for accepted batches, and the
    largest web process.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    accepted: dict[tuple[int, int, int], int] = field(default_factory=dict)
    most_rss_bytes: int = 0


def besiege(
    url: str, examples: int, web: Callable[[], list[psutil.Process]], seed_: int = 0
) -> Siege:
    """Post `count` malformed bodies to the server at `url`. Raises AssertionError with the smallest
    failing post.
    """
    siege = Siege()
    pool = urllib3.PoolManager(retries=False)
    start = msgspec.json.encode(_MESSAGES["start"][1])
    assert _send(pool, url, Post("start", start, JSON, "")).status in (200, 201)

    @seed(seed_)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(posts())
    def bear(post: Post) -> None:
        _judge(siege, post, _send(pool, url, post))
        if siege.statuses.total() % LOOK_EVERY == 0:
            siege.most_rss_bytes = max(
                [siege.most_rss_bytes, *(process.memory_info().rss for process in web())]
            )

    bear()
    pool.clear()
    assert siege.most_rss_bytes < MOST_RSS_BYTES, (
        f"a web process takes {siege.most_rss_bytes} bytes"
    )
    return siege


def _send(pool: urllib3.PoolManager, url: str, post: Post) -> urllib3.BaseHTTPResponse:
    fields = {"Content-Type": post.content_type, "Content-Encoding": post.encoding}
    headers = {name: value for name, value in fields.items() if value}
    return pool.request(
        "POST", url + post.path, body=post.body, headers=headers, timeout=30.0, redirect=False
    )


def _judge(siege: Siege, post: Post, answer: urllib3.BaseHTTPResponse) -> None:
    siege.statuses[answer.status] += 1
    assert answer.status < 500, answer.data
    if answer.status >= 400:
        assert answer.headers["Content-Type"] == PROBLEM_JSON
        assert answer.json()["detail"]
    elif post.kind == "batch":
        batch = understood(post)
        siege.accepted[batch.rank, batch.attempt, batch.seq] = answer.json()["accepted"]


def understood(post: Post) -> Batch:
    """Decode a batch that the server accepted as the server does, which takes 0.0 for 0."""
    content_type = MSGPACK if "msgpack" in post.content_type else JSON
    return read_packed(post.body, Batch, content_type, post.encoding)


# -- the posts -------------------------------------------------------------------------------------------------------------------------

_EDGES = st.sampled_from(
    [
        0,
        -1,
        2**31,
        2**53,
        2**62,
        2**63,
        2**64 - 1,
        -(2**63),
        1e308,
        float("nan"),
        float("-inf"),
        "",
        "\0",
        "é\U0001f600",
    ]
)
_LEAVES = (
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
)
_JUNK = st.recursive(
    st.one_of(*_LEAVES, _EDGES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_TYPES = st.sampled_from(
    ["application/x-msgpack", "text/plain", "application/json; charset=latin-1", "", "x"]
)
_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@st.composite
def posts(draw: st.DrawFn) -> Post:
    """Return a valid post with zero or more mutations."""
    kind = draw(st.sampled_from(["batch", "batch", "batch", *_MESSAGES]))
    message = msgspec.to_builtins(_MESSAGES[kind][1], builtin_types=(bytes,))
    if kind == "batch" and draw(st.booleans()):
        message["chunks"][0] = {"stream": STREAMS[0], "packed": draw(_forged_chunks())}
    for _ in range(draw(st.integers(0, 2))):
        message = _with_a_wound(draw, message)
    content_type = draw(st.sampled_from([MSGPACK, JSON]))
    body = _broken(draw, _encoded(message, content_type))
    encoding = draw(st.sampled_from(list(_PACKERS)))
    body = _broken(draw, _PACKERS[encoding](body)) if encoding else body
    if draw(st.integers(0, 9)) == 0:
        content_type, encoding = (
            draw(_TYPES),
            draw(st.sampled_from([*_PACKERS, "br", "gzip, gzip"])),
        )
    return Post(kind, body, content_type, encoding)


def _encoded(message: Any, content_type: str) -> bytes:
    if content_type == MSGPACK:
        return msgspec.msgpack.encode(message)
    return json.dumps(message, default=lambda value: base64.b64encode(value).decode()).encode()


def _with_a_wound(draw: st.DrawFn, message: Any) -> Any:
    """Replace, remove or repeat one value of the message at any depth."""
    if not isinstance(message, (dict, list)) or not message or draw(st.integers(0, 5)) == 0:
        return draw(_JUNK)
    copy = message.copy()
    key = draw(st.sampled_from(list(copy) if isinstance(copy, dict) else range(len(copy))))
    how = draw(st.sampled_from(["deeper", "deeper", "left out", "repeated", "nested"]))
    if how == "deeper":
        copy[key] = _with_a_wound(draw, copy[key])
    elif how == "left out":
        del copy[key]
    elif how == "nested":
        copy[key] = _abyss(copy[key], draw(st.sampled_from([1, 40, 600])))
    elif isinstance(copy, list):
        copy += copy[key : key + 1] * draw(st.sampled_from([1, 300]))
    else:
        copy[draw(st.text(max_size=8))] = copy[key]
    return copy


def _abyss(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _broken(draw: st.DrawFn, body: bytes) -> bytes:
    """Change, cut or insert bytes; half of the time, change nothing."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        at = draw(st.integers(0, len(body)))
        how = draw(st.sampled_from(["change", "cut out", "cut off", "put in"]))
        few = draw(st.binary(min_size=1, max_size=8))
        body = {
            "change": body[:at] + few + body[at + len(few) :],
            "cut out": body[:at] + body[at + len(few) :],
            "cut off": body[:at],
            "put in": body[:at] + few + body[at:],
        }[how]
    return body


@st.composite
def _forged_chunks(draw: st.DrawFn) -> bytes:
    """Return a packed chunk with a valid checksum whose header may contradict its payload."""
    columns = [
        ColumnHeader("step", "int"),
        ColumnHeader("time_s", "float"),
        ColumnHeader("host_used_bytes", "int", draw(st.booleans())),
    ]
    columns = [column for column in columns if draw(st.integers(0, 9))]
    columns += draw(
        st.lists(
            st.builds(
                ColumnHeader, st.text(max_size=6), st.sampled_from(["int", "float"]), st.booleans()
            ),
            max_size=1,
        )
    )
    rows = draw(st.one_of(st.integers(1, 3), st.sampled_from([0, -1, 99_999, 2**40])))
    payload = (
        draw(st.binary(max_size=100))
        if draw(st.booleans())
        else bytes(8 * min(max(rows, 0), 3) * len(columns))
    )
    header = ChunkHeader(
        rows=rows,
        columns=columns,
        codec=draw(st.sampled_from(["zlib", "zstd"])),
        raw_bytes=draw(st.sampled_from([len(payload)] * 4 + [0, 2**26, 2**40])),
        crc32=zlib.crc32(payload),
        version=draw(st.sampled_from([1, 1, 1, 2])),
    )
    head = msgspec.msgpack.encode(header)
    packed = (
        zlib.compress(payload)
        if header.codec == "zlib"
        else zstandard.ZstdCompressor().compress(payload)
    )
    return MAGIC + len(head).to_bytes(4, "little") + head + packed
