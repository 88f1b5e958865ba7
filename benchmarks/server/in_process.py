"""A batch of 500 samples in this process, without HTTP: how much the database layer adds to the bare work.

Raw is what any server must do that keeps batches in SQLite: decode and check the body, then insert the chunk with the driver alone.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable

from benchmarks.figures import Figure, from_samples
from benchmarks.server.stage import fresh_database
from benchmarks.server.workload import bodies, enter_runs
from memagent.wire.codec import decode
from memagent.wire.messages import Batch
from memagent_server.ingest.validate import check_batch
from memagent_server.store.chunks import pack_stats
from memagent_server.store.engine import Database
from memagent_server.store.samples import add_batch

TITLE = "a batch of 500 samples, in process"
ROWS = 500
BATCHES = 50
RATIO_GOAL = 1.5

_INSERT = "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def measure(quick: bool) -> list[Figure]:
    """Blocks of batches take turns: raw, and through the store."""
    rounds = 3 if quick else 30
    sent = bodies(BATCHES, ROWS)
    reading, raw, stored, ratios = [], [], [], []
    with fresh_database() as bare, fresh_database() as whole:
        for number in range(rounds):
            reading.append(_timed(lambda body: check_batch(decode(body, Batch)), sent))
            raw.append(_timed(_raw(bare, number), sent))
            stored.append(_timed(_store(whole, number), sent))
            ratios.append(stored[-1] / raw[-1])
    return [
        from_samples("decode and check", "us", reading, scale=1e6),
        from_samples("raw: decode, check, bare insert", "us", raw, scale=1e6),
        from_samples("decode, check, store", "us", stored, scale=1e6),
        from_samples("the store by raw", "x", ratios, goal=RATIO_GOAL),
    ]


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


def _store(database: Database, number: int) -> Callable[[bytes], None]:
    run_id = f"run-{number}"
    enter_runs(database, [run_id], time.time())

    def store(body: bytes) -> None:
        batch, chunks = check_batch(decode(body, Batch))
        with database.write() as session:
            add_batch(session, run_id, batch, time.time(), chunks=chunks)

    return store


def _timed(take: Callable[[bytes], object], sent: list[bytes]) -> float:
    """Median seconds of one."""
    seconds = []
    for body in sent:
        began = time.perf_counter()
        take(body)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
