"""Disk space of samples, compared with 208 bytes: 26 columns of 8 bytes, the size of a packed
sample without compression.

The traces are recorded: small transformers trained on a CPU, sampled at each step with 27 columns
by the agent. `steady` has sequences of one length, `noisy` random ones. They are sent in flushes of
10 samples, like a rank with two steps a second, and read back: the output must equal the input.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import func, select

from benchmarks.figures import Figure
from benchmarks.server.real_server import fresh_database
from benchmarks.server.workload import enter_runs
from memagent.wire.columns import Value, pack
from memagent.wire.messages import Batch, Chunk, Finish
from memagent_server.store.compaction import compact_run
from memagent_server.store.engine import Database
from memagent_server.store.models import ChunkRow, RollupRow, StreamRow
from memagent_server.store.packing import unseal
from memagent_server.store.runs import finish_run
from memagent_server.store.samples import add_batch, read_samples

TITLE = "bytes a sample on disk, of recorded traces"
RECORDED = Path(__file__).with_name("recorded")
PACKED_BYTES = 208
GOALS = {"steady": 0.06, "noisy": 0.15}
FLUSH = 10


def measure(quick: bool) -> list[Figure]:
    return [
        figure
        for name, goal in GOALS.items()
        for figure in _of_trace(name, goal, 520 if quick else None)
    ]


def _of_trace(name: str, goal: float, most: int | None) -> list[Figure]:
    columns = {
        key: values[:most]
        for key, values in unseal((RECORDED / f"{name}.chunk").read_bytes()).items()
    }
    samples = len(columns["step"])
    with fresh_database() as database:
        empty = _file_bytes(database)
        _send(database, columns)
        flushed = _bulk_bytes(database)
        compact_run(database, "run")
        compacted, whole = _bulk_bytes(database), _file_bytes(database) - empty
        assert _came_back(database, columns), "what was sent is not what came back"
    return [
        Figure(f"{name}: as flushed", "B", flushed / samples),
        Figure(f"{name}: compacted, with rollups", "B", compacted / samples),
        Figure(f"{name}: of {PACKED_BYTES} bytes", "x", compacted / samples / PACKED_BYTES, goal=goal),
        Figure(f"{name}: what the database file grew by", "B", whole / samples, note="all tables and indexes; 10 samples a batch"),
    ]  # fmt: skip


def _send(database: Database, columns: dict[str, list[Value]]) -> None:
    enter_runs(database, ["run"], 1e9)
    samples = len(columns["step"])
    with database.write() as session:
        for seq, first in enumerate(range(0, samples, FLUSH)):
            packed = pack({name: values[first : first + FLUSH] for name, values in columns.items()})
            add_batch(
                session, "run", Batch(seq=seq, chunks=[Chunk(stream="host", packed=packed)]), 1e9
            )
        finish_run(session, "run", Finish(status="completed"), 2e9)


def _bulk_bytes(database: Database) -> int:
    sizes = (ChunkRow.packed, ChunkRow.stats, RollupRow.packed)
    with database.read() as session:
        return sum(
            session.scalar(select(func.coalesce(func.sum(func.length(column)), 0))) or 0
            for column in sizes
        )


def _file_bytes(database: Database) -> int:
    connection = sqlite3.connect(str(database.engine.url.database), isolation_level=None)
    connection.execute("VACUUM")
    pages, size = (
        connection.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size")
    )
    connection.close()
    return int(pages * size)


def _came_back(database: Database, expected: dict[str, list[Value]]) -> bool:
    actual: dict[str, list[Value]] = {}
    with database.read() as session:
        stream_id = session.scalars(select(StreamRow.id)).one()
        for _, columns in read_samples(session, stream_id):
            for name, values in columns.items():
                actual.setdefault(name, []).extend(values)
    return actual.keys() == expected.keys() and all(
        _same(actual[name], expected[name]) for name in expected
    )


def _same(actual: list[Value], expected: list[Value]) -> bool:
    """Compare bit by bit."""
    return len(actual) == len(expected) and all(
        one == other and type(one) is type(other) and str(one) == str(other)
        for one, other in zip(actual, expected, strict=True)
    )  # fmt: skip
