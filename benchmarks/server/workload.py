"""Batches as agents send them: samples of 20 counters that change as in real training."""

from __future__ import annotations

import random

from memagent.wire.codec import encode
from memagent.wire.columns import Value, pack
from memagent.wire.fields import FIELDS
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store.engine import Database
from memagent_server.store.runs import start_run

DEVICE = "GPU-benchmark"
COUNTERS = [
    field.name for field in FIELDS if field.kind == "int" and field.name.endswith("_bytes")
][:18]
"""With `step` and `time_s`, a sample has 20 columns: 160 bytes unpacked."""


def columns(first_step: int, rows: int, *, seed: int = 0) -> dict[str, list[Value]]:
    """Return samples of a noisy training: every counter changes at each step, within 10 MB."""
    source = random.Random(f"{seed} {first_step}")
    samples: dict[str, list[Value]] = {
        "step": list(range(first_step, first_step + rows)),
        "time_s": [
            1.7e9 + 0.5 * (first_step + row) + source.random() * 0.01 for row in range(rows)
        ],
    }
    for number, name in enumerate(COUNTERS, start=1):
        samples[name] = [number * 10**9 + source.randrange(10**7) for _ in range(rows)]
    return samples


def batch(seq: int, rows: int, *, rank: int = 0) -> Batch:
    """Return the rank's batch number `seq`."""
    packed = pack(columns(seq * rows, rows, seed=rank))
    return Batch(rank=rank, seq=seq, chunks=[Chunk(stream=DEVICE, packed=packed)])


def bodies(count: int, rows: int, *, rank: int = 0) -> list[bytes]:
    """Return the first batches of a rank, encoded."""
    return [encode(batch(seq, rows, rank=rank)) for seq in range(count)]


def enter_runs(database: Database, run_ids: list[str], now: float) -> None:
    """Register the runs."""
    with database.write() as session:
        for run_id in run_ids:
            start_run(session, RunStart(run_id=run_id, project="benchmark"), now)
