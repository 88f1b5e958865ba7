"""Samples of the ranks: each value follows from its position, so that a stored value can be
checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from memagent.wire.columns import Value, pack
from memagent.wire.fields import SCALARS_STREAM, scalar_kind_of
from memagent.wire.messages import Batch, Chunk, Event

ROWS = 80
"""Samples per batch, in each of the STREAMS."""
EVENT_EVERY = 10
STREAMS = ("host", SCALARS_STREAM)
STEP_S = 0.01
_VALUES = {"host": "host_used_bytes", SCALARS_STREAM: "loss"}


@dataclass(frozen=True)
class Row:
    """One sample, sent or stored."""

    rank: int
    stream: str
    step: int
    time_s: float
    value: int | float


def rows_of(run_id: str, rank: int, seq: int, at: float) -> Iterator[Row]:
    """Return the samples of a batch made at `at` on the rank's clock."""
    for stream in STREAMS:
        for step in range(seq * ROWS, (seq + 1) * ROWS):
            yield Row(
                rank,
                stream,
                step,
                at + (step - seq * ROWS) * STEP_S,
                _value(f"{run_id} {rank} {stream} {step}", stream),
            )


def has_event(seq: int) -> bool:
    return seq % EVENT_EVERY == 0


def batch_of(run_id: str, rank: int, seq: int, at: float) -> Batch:
    """Return the message of the same batch."""
    rows = list(rows_of(run_id, rank, seq, at))
    chunks = [_chunk(stream, [row for row in rows if row.stream == stream]) for stream in STREAMS]
    events = [Event(kind="mark", step=seq * ROWS, time_s=at)] if has_event(seq) else []
    return Batch(rank=rank, seq=seq, chunks=chunks, events=events)


def stored_rows(rank: int, stream: str, columns: dict[str, list[Value]]) -> Iterator[Row]:
    """Return the rows of columns in the store's form."""
    for step, time_s, value in zip(
        columns["step"], columns["time_s"], columns[_VALUES[stream]], strict=True
    ):
        assert step is not None
        assert time_s is not None
        assert value is not None
        yield Row(rank, stream, int(step), time_s, value)


def _chunk(stream: str, rows: list[Row]) -> Chunk:
    columns: dict[str, list[Value]] = {
        "step": [row.step for row in rows],
        "time_s": [row.time_s for row in rows],
        _VALUES[stream]: [row.value for row in rows],
    }
    if stream == SCALARS_STREAM:
        return Chunk(stream=stream, packed=pack(columns, kind_of=scalar_kind_of))
    return Chunk(stream=stream, packed=pack(columns))


def _value(name: str, stream: str) -> int | float:
    number = int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "big")
    return number / 2**48 if stream == SCALARS_STREAM else number
