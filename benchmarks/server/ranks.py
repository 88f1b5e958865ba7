"""Samples of a fleet of ranks, eight to a run: 22 columns every half second, as noisy as real
training; one rank in ten leaks.
"""

from __future__ import annotations

import random

from memagent.wire.codec import encode
from memagent.wire.columns import Value, pack
from memagent.wire.messages import Batch, Chunk, Device, RunStart

STEP_S = 0.5
RANKS_A_RUN = 8
DEVICE = "GPU-benchmark"
LIMIT_BYTES = 80 * 2**30
_LEAK_BYTES = 8 * 2**20
_MIB = 2**20


def run_of(rank: int) -> str:
    """Return the run that a rank of the fleet belongs to."""
    return f"run-{rank // RANKS_A_RUN}"


def start(rank: int) -> RunStart:
    """Return the first message of the rank's agent."""
    device = Device(id=DEVICE, kind="cuda", name="GPU", limit_bytes=LIMIT_BYTES)
    return RunStart(
        run_id=run_of(rank),
        project="benchmark",
        rank=rank % RANKS_A_RUN,
        world_size=RANKS_A_RUN,
        devices=[device],
    )


def columns(rank: int, first_step: int, rows: int, began_at: float) -> dict[str, list[Value]]:
    """Return samples of a rank of the fleet. Step s is at `began_at` + s * STEP_S, in seconds since
    the Unix epoch.
    """
    source = random.Random(f"{rank} {first_step}")
    steps = range(first_step, first_step + rows)
    leak = _LEAK_BYTES if rank % 10 == 0 else 0
    allocated = [20 * 2**30 + leak * step + source.randrange(50 * _MIB) for step in steps]

    def above(least_bytes: int, noise_bytes: int = 1) -> list[Value]:
        return [value + least_bytes + source.randrange(noise_bytes) for value in allocated]

    return {
        "step": [*steps],
        "time_s": [began_at + step * STEP_S for step in steps],
        "step_s": [STEP_S + source.random() / 100 for _ in steps],
        "allocated_bytes": [*allocated],
        "peak_allocated_bytes": above(8 * 2**30, 100 * _MIB),
        "reserved_bytes": above(10 * 2**30),
        "peak_reserved_bytes": above(10 * 2**30),
        "active_bytes": above(_MIB),
        "requested_bytes": above(0),
        "inactive_split_bytes": [source.randrange(512 * _MIB) for _ in steps],
        "alloc_retries_total": [0 for _ in steps],
        "ooms_total": [0 for _ in steps],
        "segments": [300 for _ in steps],
        "device_allocs_total": [400 for _ in steps],
        "device_frees_total": [100 for _ in steps],
        "device_used_bytes": above(12 * 2**30),
        "limit_bytes": [LIMIT_BYTES for _ in steps],
        "host_rss_bytes": [4 * 2**30 + source.randrange(200 * _MIB) for _ in steps],
        "phase_forward_peak_bytes": above(6 * 2**30, 50 * _MIB),
        "phase_backward_peak_bytes": above(8 * 2**30, 50 * _MIB),
        "phase_optimizer_peak_bytes": above(3 * 2**30),
        "input_size": [4096 for _ in steps],
    }


def batch(rank: int, seq: int, first_step: int, rows: int, began_at: float) -> Batch:
    """Return batch number `seq` of a rank of the fleet."""
    packed = pack(columns(rank, first_step, rows, began_at))
    return Batch(rank=rank % RANKS_A_RUN, seq=seq, chunks=[Chunk(stream=DEVICE, packed=packed)])


def body(rank: int, seq: int, first_step: int, rows: int, began_at: float) -> bytes:
    """Return the encoded batch."""
    return encode(batch(rank, seq, first_step, rows, began_at))
