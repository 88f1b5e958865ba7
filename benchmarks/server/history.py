"""Reading a whole run of a million steps to polars: over HTTP, and from the database itself.

The samples have 25 columns: counters that stay, counters that move each step, and noisy floats.
"""

from __future__ import annotations

import time

import numpy as np

import memagent
from benchmarks.figures import Figure, from_samples
from benchmarks.server.real_server import fresh_database, running_server
from memagent.arrays.stored_chunks import Columns
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store.chunks import pack_stats
from memagent_server.store.engine import Database
from memagent_server.store.models import ChunkRow, StreamRow
from memagent_server.store.packing import UNIT_ROWS, seal
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

TITLE = "a whole run, read to polars by memagent.Api"
ROWS, ROWS_QUICK = 1_000_000, 5_000
ROUNDS = 5
GOAL_S = 1.0
_COUNTERS = 20


def measure(quick: bool) -> list[Figure]:
    """Read the run several times from each source."""
    rows = ROWS_QUICK if quick else ROWS
    with fresh_database() as database:
        _add_run(database, rows)
        database.close()
        with running_server(database.url, environ={"MEMAGENT_OPEN": "1"}) as server:
            return [_figure("HTTP", server.url, rows), _figure("database", database.url, rows)]


def _figure(name: str, source: str, rows: int) -> Figure:
    seconds = []
    with memagent.Api(source) as api:
        run = api.run("big")
        for _ in range(ROUNDS):
            began_at = time.perf_counter()
            frame = run.history().to_polars()
            seconds.append(time.perf_counter() - began_at)
            assert frame.height == rows
    label = f"{rows:,} steps x 25 columns, {name}"
    return from_samples(label, "s", seconds, goal=GOAL_S if rows == ROWS else None)


def _add_run(database: Database, rows: int) -> None:
    """Store compacted chunks, as a run has them that has ended."""
    now = time.time()
    with database.write() as session:
        start_run(session, RunStart(run_id="big"), now)
        sample = Chunk(stream="host", columns={"step": [0], "time_s": [now]})
        add_batch(session, "big", Batch(seq=0, chunks=[sample]), now)
        stream = session.query(StreamRow).one()
        session.query(ChunkRow).delete()
        stream.samples = rows
        for first in range(0, rows, UNIT_ROWS):
            steps = np.arange(first, min(first + UNIT_ROWS, rows))
            session.add(
                ChunkRow(
                    stream_id=stream.id,
                    run_id="big",
                    seq=int(steps[-1]),
                    first_step=first,
                    last_step=int(steps[-1]),
                    rows=len(steps),
                    received_at=now,
                    stats=pack_stats({}),
                    packed=seal(_columns(steps, now)),
                )
            )


def _columns(steps: np.ndarray, now: float) -> Columns:
    random = np.random.default_rng(int(steps[0]))
    count = len(steps)
    columns: Columns = {
        "step": (steps, None),
        "time_s": (now + steps / 10 + random.normal(0, 1e-3, count), None),
        "step_s": (np.full(count, 0.1) + random.normal(0, 1e-3, count), None),
        "power_w": (random.random(count), None),
        "utilization_ratio": (random.random(count), steps % 7 > 0),
    }
    for number in range(_COUNTERS):
        moves = random.integers(0, 2**20, count) * 512 if number % 3 == 0 else 0
        columns[f"counter{number}_bytes"] = (np.full(count, 2**33) + moves, None)
    return columns
