"""Hostile requests of every kind at a real server: heads, paths, parameters, tokens, bodies.

`python -m benchmarks.server.fuzz [--requests N] [--minutes M] [--seed S] [--clients C]` sends any
number, such as 1,000,000. Each must be answered or refused: no 5xx but those that ask to come back, no answer that
never comes, and no memory that grows with the number of requests. A line a minute on stderr says
how far it is.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import json
import random
import re
import socket
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import psutil
import urllib3
import zstandard

from benchmarks.figures import Figure, table
from benchmarks.server.fuzz_batches import HostileBatches, issue_tokens
from benchmarks.server.real_server import SECRET_KEY, Server, fresh_database, running_server
from benchmarks.server.workload import batch, enter_runs
from memagent.wire.messages import (
    Device,
    Event,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
    Stack,
    Suspect,
)

TITLE = "hostile requests"
REQUESTS, REQUESTS_QUICK = 20_000, 300
TIMEOUT_S = 60.0
CLIENTS = 8
LOOK_EVERY_S = 1.0
PROGRESS_EVERY_S = 60.0
BATCH_SHARE = 0.4
"""Share of the requests that aim at the batches which the server answers without Flask."""
WARM = 5_000
"""Requests after which the memory may not grow much."""
MAX_GROWTH_MIB = 64.0
TOKEN = "an-admin-token-for-the-fuzz"
_READ_BYTES = 2**22
_RUNS = ("fuzz", "other", "none")
_STATUS = re.compile(r"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)
_PASSING = (501, 503)
"""Statuses that aren't failures: a missing package, and a request to come back (Retry-After)."""
_HANG, _REFUSED = "hang", "refused"
_UNANSWERED = (_HANG, _REFUSED)

_STRINGS = (
    "", "0", "-1", "1e308", "NaN", "9223372036854775808", "' OR 1=1 --", "\0", "%00", "%", "../../etc/passwd",
    "//evil.example", "<script>", "{{7*7}}", "${jndi:ldap://x}", "*", "a" * 300, "é\U0001f600\u202e", "\ud7ff",
    "\r\nX: y", "true", "null", "[]", "{}", "2026-01-01", "fuzz", "running", "csv", "parquet", "host", "١٢",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**53, 2**62, 2**63 - 1, 2**64 - 1, -(2**63), 1e308, 5e-324, float("nan"),
    float("inf"), "", "\0", "x" * 5_000, b"\xff\x00", [], {}, [[]] * 50, {"a": {"b": None}}, {"": ""},
)  # fmt: skip
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "X" * 30)
_TYPES = (
    "application/json",
    "application/msgpack",
    "application/x-msgpack",
    "text/plain",
    "",
    "x/y; charset=\xff",
)
_HEADERS = (
    "Accept: text/html", "Accept: x", "Accept: */*;q=nan", "Range: bytes=0-0,1-", "Expect: 100-continue",
    "If-None-Match: *", "Cookie: memagent_session=x.y.z", "Host: evil.example", "X-Forwarded-For: 1",
    "Transfer-Encoding: chunked", "Content-Length: 5", "Content-Length: -1", "Connection: close",
    "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Upgrade: websocket", "X-Request-ID: \x01",
    "Accept-Encoding: gzip", "Authorization: Basic eA==", "Authorization: Bearer x", "A: " + "b" * 9_000,
)  # fmt: skip
_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),  # not for several threads
    "br": bytes,
}
_MESSAGES: dict[str, Any] = {
    "": RunStart(run_id="fuzz", config={"lr": 0.1}, tags=["a"], devices=[Device(id="host", kind="host", name="box")]),
    "/{run}/batches": msgspec.structs.replace(
        batch(0, 3), dropped_samples={"queue_full": 3}, events=[Event(kind="oom", step=3, time_s=1e9, data={"asked_bytes": 5})]
    ),
    "/{run}/predictions": PredictionMessage(method="trace", peak_allocated_bytes=2**30, components={"gradients": 7}),
    "/{run}/snapshots": SnapshotMessage(
        method="census", suspects=[Suspect(kind="list", holder="kept", line=4)], stacks=[Stack(frames=["f (a.py:1)"], size_bytes=9)]
    ),
    "/{run}/finish": Finish(status="failed", step=4, error="RuntimeError: x"),
}  # fmt: skip


@dataclass
class Outcome:
    """What became of the requests; `failures` has the first that failed."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    errors: int = 0
    hangs: int = 0
    stored: int = 0
    """Batches that were stored or repeated."""
    warm_bytes: Counter[str] = field(default_factory=Counter)
    last_bytes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total(self) -> int:
        return self.statuses.total()

    @property
    def slowest_note(self) -> str:
        return f"slowest {self.slowest_s:.2f} s: {self.slowest!r}"

    def note(self, statuses: list[str], request: bytes, took_s: float, *, is_batch: bool) -> None:
        with self.lock:
            if took_s > self.slowest_s:
                self.slowest_s, self.slowest = took_s, request[:300]
            for status in statuses:
                self._note_one(status, request, is_batch=is_batch)

    def note_memory(self, sizes: Counter[str]) -> None:
        self.last_bytes = sizes
        if self.total <= WARM:
            self.warm_bytes |= sizes

    def _note_one(self, status: str, request: bytes, *, is_batch: bool) -> None:
        self.statuses[status] += 1
        is_error = status.isdecimal() and int(status) >= 500 and int(status) not in _PASSING
        self.errors += is_error
        self.hangs += status in _UNANSWERED
        self.stored += is_batch and status == "200"
        if (is_error or status in _UNANSWERED) and len(self.failures) < 5:
            self.failures.append(f"{status} to {request[:300]!r}")


@dataclass(frozen=True)
class Load:
    """What is sent: `requests`, or fewer if `minutes` have passed."""

    requests: int
    minutes: float
    seed: int
    clients: int
    tokens: list[str]

    def sources(self) -> list[random.Random]:
        return [random.Random(f"{self.seed} {client}") for client in range(self.clients)]


def measure(quick: bool) -> list[Figure]:
    return fuzz(REQUESTS_QUICK if quick else REQUESTS)


def fuzz(
    requests: int, *, minutes: float = inf, seed: int = 7, clients: int = CLIENTS
) -> list[Figure]:
    """Send the requests to a new server with its worker, and return the figures."""
    with fresh_database() as database:
        enter_runs(database, list(_RUNS[:2]), time.time())
        tokens = [*issue_tokens(database, SECRET_KEY), TOKEN, "wrong"]
        load = Load(requests, minutes, seed, clients, tokens)
        database.close()
        environ = {"MEMAGENT_ADMIN_TOKEN": TOKEN}
        with running_server(database.url, environ=environ, worker=True) as server:
            outcome = _send_all(server, load)
    growth = Counter(outcome.last_bytes)
    growth.subtract(outcome.warm_bytes)
    by_role = ", ".join(f"{role} {size / 2**20:.0f}" for role, size in growth.items())
    statuses = ", ".join(
        f"{status} {count:,}" for status, count in sorted(outcome.statuses.items())
    )
    return [
        Figure("requests", "", outcome.total, note=f"{statuses}; batches stored {outcome.stored:,}"),
        Figure("5xx", "", outcome.errors, goal=0, note="; ".join(outcome.failures)),
        Figure("without an answer", "", outcome.hangs, goal=0, note=outcome.slowest_note),
        Figure(
            "resident memory, last by warm", "MiB", growth.total() / 2**20, goal=MAX_GROWTH_MIB,
            note=f"{by_role}; {outcome.warm_bytes.total() / 2**20:.0f} MiB once {WARM:,} were sent",
        ),
    ]  # fmt: skip


def _send_all(server: Server, load: Load) -> Outcome:
    outcome, routes = Outcome(), _routes(server.url)
    _load_all_code(server.url)
    began_at = time.monotonic()
    until = began_at + 60 * load.minutes
    threads = [
        threading.Thread(
            target=_send, args=(server.url, load, source, routes, outcome, until), daemon=True
        )
        for source in load.sources()
    ]
    for thread in threads:
        thread.start()
    next_line_at = began_at
    while any(thread.is_alive() for thread in threads):
        outcome.note_memory(_resident_bytes(server))
        if time.monotonic() >= next_line_at:
            next_line_at += PROGRESS_EVERY_S
            _show_progress(outcome, time.monotonic() - began_at)
        time.sleep(LOOK_EVERY_S)
    outcome.note_memory(_resident_bytes(server))
    return outcome


def _load_all_code(url: str) -> None:
    """Let the server import pyarrow: 50 MiB that a rare request would add in the middle."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    path = "/api/v1/runs/fuzz/export?format=parquet"
    urllib3.request("GET", f"{url}{path}", headers=headers, timeout=TIMEOUT_S)


def _send(
    url: str,
    load: Load,
    source: random.Random,
    routes: list[tuple[str, str, list[str]]],
    outcome: Outcome,
    until: float,
) -> None:
    """Send as one client, until all clients together have sent enough."""
    batches = HostileBatches(load.tokens, _RUNS, source)
    connection: socket.socket | None = None
    while outcome.total < load.requests and time.monotonic() < until:
        try:
            connection = connection or _connect(url)
        except OSError:
            outcome.note([_REFUSED], b"", 0.0, is_batch=False)
            time.sleep(LOOK_EVERY_S)  # a web process that was replaced
            continue
        is_batch = source.random() < BATCH_SHARE
        method, request = ("POST", batches.request()) if is_batch else _request(source, routes)
        sent_at = time.monotonic()
        statuses, is_open = _answers(connection, method, request)
        outcome.note(statuses, request, time.monotonic() - sent_at, is_batch=is_batch)
        if not is_open:
            connection.close()
            connection = None


def _show_progress(outcome: Outcome, seconds: float) -> None:
    sizes = ", ".join(f"{role} {size / 2**20:.0f}" for role, size in outcome.last_bytes.items())
    print(
        f"{seconds / 60:.0f} min: {outcome.total:,} requests, {outcome.errors} 5xx, "
        f"{outcome.hangs} without an answer, resident MiB: {sizes}, load {psutil.getloadavg()[0]:.1f}",
        *outcome.failures,
        sep="\n",
        file=sys.stderr,
        flush=True,
    )


def _resident_bytes(server: Server) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for process in [server.process, *server.process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # one that was replaced
            role = "worker" if "worker" in process.cmdline() else "web"
            sizes[role] += process.memory_info().rss
    return sizes


def _routes(url: str) -> list[tuple[str, str, list[str]]]:
    """Return (method, path, parameters) of the API, and the pages."""
    document = urllib3.request("GET", f"{url}/openapi.json").json()
    routes = [
        (method.upper(), path, [one["name"] for one in described.get("parameters", ()) if one.get("in") == "query"])
        for path, methods in document["paths"].items()
        for method, described in methods.items()
        if isinstance(described, dict)
    ]  # fmt: skip
    pages = (
        "/",
        "/runs/{run}",
        "/compare",
        "/estimate",
        "/alerts",
        "/settings/tokens",
        "/docs/{run}",
        "/login",
    )
    names = [
        "q",
        "tag",
        "status",
        "runs",
        "cursor",
        "limit",
        "sort",
        "next",
        "code",
        "from",
        "to",
        "rank",
        "device",
    ]
    return routes + [("GET", page, names) for page in pages]


def _request(source: random.Random, routes: list[tuple[str, str, list[str]]]) -> tuple[str, bytes]:
    """Return the method and the bytes of a request."""
    kind = source.random()
    if kind < 0.4:
        method, (path, message) = "POST", source.choice(list(_MESSAGES.items()))
        target = "/api/v1/runs" + path.format(run=source.choice(_RUNS))
        body, headers = _body(source, message)
    else:
        method, path, names = source.choice(routes)
        target = _target(source, path, names)
        body, headers = b"", []
        if method != "GET":
            body, headers = _body(source, source.choice(_VALUES))
    if source.random() < 0.05:
        method = source.choice(_METHODS)
    headers += ["Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    if source.random() < 0.95:
        headers.append(f"Authorization: Bearer {TOKEN}")
    if source.random() < 0.2:
        headers += source.sample(_HEADERS, source.choice((1, 1, 2, 5)))
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *headers]).encode("utf-8", "replace")
    request = head + b"\r\n\r\n" + body
    return method, _damaged(source, request) if source.random() < 0.05 else request


def _target(source: random.Random, path: str, names: list[str]) -> str:
    parts = []
    for part in path.split("/"):
        is_name = part.startswith("{")
        value = source.choice(_RUNS) if source.random() < 0.6 else source.choice(_STRINGS)
        parts.append(quote(value, safe="") if is_name else part)
    chosen = source.sample(names, min(len(names), source.choice((0, 0, 1, 2)))) if names else []
    if source.random() < 0.05:
        chosen.append(source.choice(_STRINGS) or "x")
    pairs = [f"{quote(name, safe='')}={quote(source.choice(_STRINGS), safe='')}" for name in chosen]
    return "/".join(parts) + ("?" + "&".join(pairs) if pairs else "")


def _body(source: random.Random, message: Any) -> tuple[bytes, list[str]]:
    value = msgspec.to_builtins(message, builtin_types=(bytes,))
    for _ in range(source.choice((0, 1, 1, 2, 4))):
        value = _changed(source, value)
    kind = source.choice(_TYPES) if source.random() < 0.05 else source.choice(_TYPES[:2])
    try:
        body = (
            json.dumps(value, default=str).encode()
            if "json" in kind
            else msgspec.msgpack.encode(value)
        )
    except (ValueError, OverflowError):
        body = repr(value).encode()
    body = _damaged(source, body) if source.random() < 0.2 else body
    headers = [f"Content-Type: {kind}"]
    if source.random() < 0.3:
        encoding = source.choice(list(_PACKERS))
        body = _PACKERS[encoding](body)
        body = _damaged(source, body) if source.random() < 0.2 else body
        headers.append(f"Content-Encoding: {encoding}")
    return body, headers


def _changed(source: random.Random, value: Any) -> Any:
    """Replace, drop or repeat one value at any depth."""
    if not isinstance(value, (dict, list)) or not value or source.random() < 0.1:
        return source.choice(_VALUES)
    copy = value.copy()
    key = source.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    how = source.random()
    if how < 0.7:
        copy[key] = _changed(source, copy[key])
    elif how < 0.8:
        del copy[key]
    elif isinstance(copy, list):
        copy += [copy[key]] * source.choice((1, 100))
    else:
        copy[source.choice(_STRINGS)] = copy[key]
    return copy


def _damaged(source: random.Random, data: bytes) -> bytes:
    at = source.randrange(len(data) + 1)
    few = source.randbytes(source.choice((1, 4, 16)))
    return source.choice(
        (data[:at], data[:at] + few + data[at:], data[:at] + few + data[at + len(few) :])
    )


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 80), timeout=TIMEOUT_S)


def _answers(connection: socket.socket, method: str, request: bytes) -> tuple[list[str], bool]:
    """Return the statuses, and whether the connection can be used again.

    A request that may be incomplete says so by closing its half of the connection. Two requests
    in one piece aren't whole either; all that the server answers is read.
    """
    is_whole = request.startswith(method.encode()) and _is_whole(request)
    try:
        connection.sendall(request)
        if not is_whole:
            connection.shutdown(socket.SHUT_WR)
            return _STATUS.findall(_read_all(connection).decode("latin-1")) or ["closed"], False
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        response.read(_READ_BYTES)
        is_read = response.isclosed()
        closes = response.getheader("connection", "").lower() == "close"
        return [str(response.status)], is_read and not closes
    except TimeoutError:
        return [_HANG], False
    except (OSError, http.client.HTTPException, ValueError):
        return ["closed"], False


def _read_all(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    while sum(map(len, parts)) < _READ_BYTES and (part := connection.recv(2**16)):
        parts.append(part)
    return b"".join(parts)


def _is_whole(request: bytes) -> bool:
    """Check that the server can't wait for more: the head ends, and has one length that fits."""
    head, separator, body = request.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    lengths = [line[15:].strip() for line in lines if line.startswith(b"content-length:")]
    is_plain = not any(line.startswith((b"transfer-", b"expect", b"upgrade")) for line in lines)
    return bool(separator) and is_plain and lengths == [str(len(body)).encode()]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--minutes", type=float, default=inf, help="end after so long")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="connections at once")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rows = fuzz(
        options.requests, minutes=options.minutes, seed=options.seed, clients=options.clients
    )
    print(f"load {psutil.getloadavg()[0]:.1f}\n{table({TITLE: rows})}")


if __name__ == "__main__":
    main()
