"""Hostile batches near the shape that the server answers without Flask (`ingest.direct`).

Most heads are plain, the others differ from a plain one in a line or two. The bodies are
valid, changed, or damaged inside a chunk's packed columns. The tokens are valid, of other scopes
and projects, or wrong.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import zstandard

from benchmarks.server.workload import columns
from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Event
from memagent_server.http.credentials import issue_token
from memagent_server.settings import Settings
from memagent_server.store.engine import Database

_TARGETS = (
    "/api/v1/runs/{run}/batches", "/api/v1/runs/{run}/batches/", "/api/v1/runs/{run}/batches?a=b", "//{run}/batches",
    "/api/v1/runs/{run}%2Fbatches", "/api/v1/runs/%2e%2e/batches", "/api/v1/runs/{run}%00/batches", "*",
    "http://evil.example/api/v1/runs/{run}/batches", "/api/v1/runs/{run}%0a/batches", "/API/v1/runs/{run}/batches",
    "/api/v1/runs/" + "r" * 4_000 + "/batches", "/api/v1/runs/{run}/batches#a", "/api/v1/../v1/runs/{run}/batches",
)  # fmt: skip
_ODD_LINES = (
    "Content-Type: application/msgpack; charset=utf-8", "Content-Type: text/plain", "content_type: text/html",
    "Content-Length: 0", "Content-Length: +5", "Content-Length: 99999999999", "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity", "Accept: */*", "Accept: application/json", "Accept: text/html;q=1e9",
    "Content-Encoding: zstd", "Content-Encoding: gzip, zstd", "Content-Encoding: \xb2", "Expect: 100-continue",
    "X-Memagent-Replayed: 1", "X-Request-ID: " + "a" * 65, "Host: evil.example", "Origin: http://evil.example",
    "Sec-Fetch-Site: cross-site", "X-Forwarded-For: 1.2.3.4", "Authorization: Bearer x", "Authorization: bearer \xff",
    "Authorization_: Bearer x", "Cookie: memagent_session=a.b.c", "X-HTTP-Method-Override: DELETE", "Connection: close",
    "Connection: upgrade", "Upgrade: h2c", "Trailer: Authorization", "Forwarded: for=_x", "Range: bytes=0-0",
)  # fmt: skip
_CHUNKS = tuple(
    pack(columns(first_step, rows)) for rows in (1, 3, 16, 100) for first_step in (0, 10, 10**6)
)


@dataclass
class HostileBatches:
    """Makes requests. `tokens` are those that it sends, the first one most often."""

    tokens: Sequence[str]
    runs: Sequence[str]
    source: random.Random
    _seqs: dict[tuple[str, int], int] = field(default_factory=dict)

    def request(self) -> bytes:
        """Return a request, or two in one piece, of which the second closes the connection."""
        if self.source.random() < 0.05:
            return self._one() + self._one("Connection: close")
        return self._one()

    def _one(self, *lines: str) -> bytes:
        source, run = self.source, self.source.choice(self.runs)
        is_plain = source.random() < 0.7
        target = (_TARGETS[0] if is_plain else source.choice(_TARGETS)).format(run=run)
        body, encoding = self._body(run)
        token = self.tokens[0] if source.random() < 0.9 else source.choice(self.tokens)
        head = [
            f"POST {target} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/msgpack", *encoding,
            f"Content-Length: {len(body)}", f"Authorization: Bearer {token}", *lines,
        ]  # fmt: skip
        if not is_plain:
            head += source.sample(_ODD_LINES, source.choice((0, 1, 2)))
        return "\r\n".join(head).encode("latin-1", "replace") + b"\r\n\r\n" + body

    def _body(self, run: str) -> tuple[bytes, list[str]]:
        source = self.source
        rank = source.randrange(4)
        seq = self._seqs.get((run, rank), 0)
        self._seqs[run, rank] = seq + 1
        packed = source.choice(_CHUNKS)
        if source.random() < 0.3:
            packed = _damaged(source, packed)
        message = Batch(rank=rank, seq=seq, chunks=[Chunk(stream="GPU-fuzz", packed=packed)])
        if source.random() < 0.1:
            event = Event(kind="oom", step=seq, time_s=time.time(), data={"asked_bytes": seq})
            message = msgspec.structs.replace(message, events=[event] * source.choice((1, 50)))
        body = encode(message)
        body = _damaged(source, body) if source.random() < 0.1 else body
        return (
            (zstandard.ZstdCompressor().compress(body), ["Content-Encoding: zstd"])
            if seq % 2
            else (body, [])
        )


def issue_tokens(database: Database, secret_key: str) -> list[str]:
    """Create tokens of every kind, and return their secrets: that of all agents first."""
    settings = Settings.from_environ({"MEMAGENT_SECRET_KEY": secret_key})
    kinds: list[tuple[str, tuple[str, ...]]] = [
        ("ingest", ()), ("ingest", ("benchmark",)), ("ingest", ("elsewhere",)), ("read", ()), ("admin", ()),
    ]  # fmt: skip
    with database.write() as session:
        made = [
            issue_token(
                session, settings, name=f"{scope} {number}", scope=scope, now=1.0, projects=projects
            )
            for number, (scope, projects) in enumerate(kinds)
        ]
        return [secret for secret, _ in made]


def _damaged(source: random.Random, data: bytes) -> bytes:
    at = source.randrange(len(data) + 1)
    few = source.randbytes(source.choice((1, 2, 8)))
    return source.choice((data[:at], data[:at] + few + data[at + len(few) :]))
