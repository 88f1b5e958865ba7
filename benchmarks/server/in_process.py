"""Cost of a batch of 500 samples in this process, without HTTP: what the database layer adds to the
bare work.

Raw is what any server must do that stores batches in SQLite: decode and check the body, then insert
the chunk with the driver alone. All figures are processor time.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks.figures import Figure, from_samples
from benchmarks.server.real_server import fresh_database
from benchmarks.server.workload import bodies, enter_runs
from memagent.wire.codec import decode
from memagent.wire.messages import Batch
from memagent_server.ingest.validate import check_batch
from memagent_server.store.chunks import pack_stats
from memagent_server.store.engine import Database
from memagent_server.store.samples import store_batch

TITLE = "a batch of 500 samples, in process"
ROWS = 500
BATCHES = 50
THREADS = 8
RATIO_GOAL = 1.5

_INSERT = "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def measure(quick: bool) -> list[Figure]:
    """Alternate blocks of batches: raw, through the store one by one, and through the store from
    several threads.
    """
    rounds = 3 if quick else 20
    messages = bodies(BATCHES, ROWS)
    reading, raw, single, crowd = [], [], [], []
    with fresh_database() as bare, fresh_database() as whole:
        for number in range(rounds):
            reading.append(_timed(lambda body: check_batch(decode(body, Batch)), messages))
            raw.append(_timed(_raw(bare, number), messages))
            single.append(_timed(_store(whole, f"single-{number}"), messages))
            crowd.append(_crowd_s(whole, number, messages))
    return [
        from_samples("decode and check", "us", reading, scale=1e6),
        from_samples("raw: decode, check, bare insert", "us", raw, scale=1e6),
        from_samples("decode, check, store: one at a time", "us", single, scale=1e6),
        from_samples(f"decode, check, store: from {THREADS} threads", "us", crowd, scale=1e6),
        _ratio("the store by raw, one at a time", single, raw),
        _ratio(f"the store by raw, from {THREADS} threads", crowd, raw),
    ]


def raw_s(count: int) -> float:
    """Return the median seconds of the bare work of a batch, as a reference for other groups."""
    with fresh_database() as bare:
        return _timed(_raw(bare, 0), bodies(count, ROWS))


def _ratio(name: str, ours: list[float], raw: list[float]) -> Figure:
    return from_samples(
        name, "x", [one / other for one, other in zip(ours, raw, strict=True)], goal=RATIO_GOAL
    )


def _raw(database: Database, number: int) -> Callable[[bytes], None]:
    connection = sqlite3.connect(str(database.engine.url.database), isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")

    def insert(body: bytes) -> None:
        batch, chunks = check_batch(decode(body, Batch))
        for chunk in chunks:
            first, last, _ = chunk.stats["step"]
            row = (
                "raw",
                number,
                batch.seq,
                first,
                last,
                chunk.rows,
                time.time(),
                pack_stats(chunk.stats),
                chunk.packed,
            )
            connection.execute(_INSERT, row)

    return insert


def _store(database: Database, run_id: str) -> Callable[[bytes], None]:
    enter_runs(database, [run_id], time.time())

    def store(body: bytes) -> None:
        batch, chunks = check_batch(decode(body, Batch))
        database.write_grouped(
            lambda connection: store_batch(connection, run_id, batch, time.time(), chunks=chunks)
        )

    return store


def _crowd_s(database: Database, number: int, messages: list[bytes]) -> float:
    """Return processor seconds per batch when several threads write at once, as in a web process."""
    stores = [_store(database, f"crowd-{number}-{thread}") for thread in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        began = time.process_time()
        for done in [
            pool.submit(lambda store=store: [store(body) for body in messages]) for store in stores
        ]:
            done.result()
        return (time.process_time() - began) / (THREADS * len(messages))


def _timed(take: Callable[[bytes], object], messages: list[bytes]) -> float:
    """Return the median processor seconds of one call. Other load on the machine doesn't count."""
    seconds = []
    for body in messages:
        began = time.thread_time()
        take(body)
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds)
