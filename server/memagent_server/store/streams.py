"""Streams: the samples of one rank and device in one attempt, and the scalars of a rank.

A stream's row summarizes its samples, so lists, metrics and alerts read no chunks. Its sparkline is
{"width": samples a value, "peaks": [bytes or null]}:

1. Value i is the maximum of the samples i * width to (i + 1) * width, in order of arrival.
2. Beyond SPARKLINE_POINTS values, neighbors are merged and the width doubles: a run of any length
   has SPARKLINE_POINTS / 2 to SPARKLINE_POINTS values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent.errors import WireError
from memagent.wire.columns import Value
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Device
from memagent_server.store.chunks import ReadChunk
from memagent_server.store.forecasts import is_newest_forecast
from memagent_server.store.models import ForecastRow, RankRow, RunRow, StreamRow
from memagent_server.store.reading import text_keys
from memagent_server.store.statements import CompiledWrite

SPARKLINE_POINTS = 32
PEAK_COLUMNS = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "process_device_bytes",
    "device_used_bytes",
)
"""Columns whose maximum over the launch a prediction can be compared with, besides the phases'."""
MEMORY_COLUMNS = ("peak_allocated_bytes", "allocated_bytes", "device_used_bytes")
"""Columns that show a stream's memory, best first."""
MAX_STREAMS = 256
"""Limit for one launch of a rank: every batch reads the state of all its streams."""
MAX_COLUMNS = 4_096
"""Limit for the newest values in a stream's row: after a script that logs each step under a new
name, each batch would write all of them again.
"""
MAX_PEAKS = 64
"""Limit for a script that names a new phase each step: its stream's row must not grow with it."""

_KIND_OF_DEVICE = {SCALARS_STREAM: "scalars", "host": "host"}


@dataclass
class StreamState:
    """The columns of a stream that change with each chunk."""

    id: int
    kind: str
    limit_bytes: int | None
    first_step: int | None
    last_step: int | None
    samples: int
    chunks: int
    peak_bytes: int | None
    peaks: dict[str, Any]
    sparkline: dict[str, Any]
    last_sample_at: float | None
    latest: dict[str, Any]
    is_compacted: bool

    @property
    def peak_ratio(self) -> float:
        """The highest share of the limit so far; 0 if peak or limit is unknown."""
        return (self.peak_bytes or 0) / self.limit_bytes if self.limit_bytes else 0.0


STREAM_STATE = tuple(StreamState.__dataclass_fields__)
_CHANGING = tuple(name for name in STREAM_STATE if name not in ("id", "kind"))
_WRITE = CompiledWrite(
    update(StreamRow)
    .where(StreamRow.run_id == bindparam("of_run"), StreamRow.id == bindparam("stream_id"))
    .values({name: bindparam(name) for name in _CHANGING})
)


def write_states(connection: Connection, run_id: str, states: Sequence[StreamState]) -> None:
    """Write states of a run's streams. The run's row must be locked since they were read."""
    rows = [
        {
            "of_run": run_id,
            "stream_id": state.id,
            **{name: getattr(state, name) for name in _CHANGING},
        }
        for state in states
    ]
    _WRITE.run(connection, *rows)


def add_chunk(stream: StreamState, chunk: ReadChunk, now: float) -> None:
    """Update a stream's state with a chunk. A late chunk doesn't replace newer values."""
    stream.chunks += 1
    if stream.kind != SCALARS_STREAM:
        stream.sparkline = extend_sparkline(stream.sparkline, stream.samples, _memory_values(chunk))
        _raise_peaks(stream, chunk)
    stream.samples += chunk.rows
    # a late chunk gives an ended stream work again
    stream.is_compacted = False
    stream.first_step = (
        chunk.first_step if stream.first_step is None else min(chunk.first_step, stream.first_step)
    )
    if stream.last_step is None or chunk.last_step >= stream.last_step:
        stream.last_step = chunk.last_step
        stream.last_sample_at = float(chunk.newest.get("time_s") or now)
        newest = {
            name: value
            for name, value in chunk.newest.items()
            # a missing reading keeps the last known value
            if value is not None or name not in stream.latest
        }
        stream.latest = dict(islice((stream.latest | newest).items(), MAX_COLUMNS))
        limit = chunk.newest.get("limit_bytes")
        if limit is not None and stream.kind != SCALARS_STREAM:
            stream.limit_bytes = int(limit)


def enter_streams(session: Session, rank: RankRow, devices: Iterable[Device]) -> None:
    """Create or update the streams of a rank's devices. The run's row must be locked."""
    existing = {
        stream.device: stream
        for stream in session.scalars(select(StreamRow).where(*_of_rank(rank)))
    }
    for device in devices:
        stream = existing.get(device.id) or _create(session, rank, device.id)
        existing[device.id] = stream
        stream.kind = device.kind
        stream.name = device.name
        if device.limit_bytes is not None:
            stream.limit_bytes = device.limit_bytes
            stream.limit_source = device.limit_source


def enter_stream(session: Session, rank: RankRow, device: str) -> StreamRow:
    """Return a rank's stream, created if it's new. The run's row must be locked."""
    stream = session.scalar(select(StreamRow).where(*_of_rank(rank), StreamRow.device == device))
    return stream or _create(session, rank, device)


def current_streams(
    session: Session, run_ids: Collection[str], *, scalars: bool = False
) -> list[StreamRow]:
    """Return the streams of each run's newest launch by id, with those of scalars if asked for."""
    query = (
        select(StreamRow)
        .where(StreamRow.run_id.in_(run_ids), StreamRow.is_current)
        .order_by(StreamRow.id)
    )
    if not scalars:
        query = query.where(StreamRow.kind != SCALARS_STREAM)
    return list(session.scalars(query))


JOB_FACTS = ("pod", "namespace", "node", "slurm_job_id")
"""Facts of a run's environment that tell where a scheduler runs it."""
MAX_FACT_CHARACTERS = 253
"""Of names in Kubernetes."""


def job_facts(session: Session, run_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return JOB_FACTS of runs, in this order; an unknown one is empty."""
    keys = text_keys(session, ((run_id, 0) for run_id in run_ids))
    facts = (RunRow.environment[name].as_string() for name in JOB_FACTS)
    query = select(RunRow.id, *facts).select_from(keys).join(RunRow, RunRow.id == keys.c.first)
    # an agent may send any value of any size
    return {
        run_id: ["" if value is None else str(value)[:MAX_FACT_CHARACTERS] for value in values]
        for run_id, *values in session.execute(query)
    }


def active_streams(
    session: Session, ended_after: float, limit: int
) -> tuple[Sequence[Row[Any]], int]:
    """Return the streams with memory of runs that are running or ended after `ended_after`.

    Each row has the stream's run and newest forecast. The second value counts all active streams;
    of more than `limit`, only those of the newest runs are returned.
    """
    is_active = (
        or_(RunRow.status == "running", RunRow.finished_at > ended_after),
        StreamRow.is_current,
        StreamRow.kind != SCALARS_STREAM,
    )
    query = (
        select(
            StreamRow.run_id,
            StreamRow.rank,
            StreamRow.device,
            StreamRow.limit_bytes,
            StreamRow.last_sample_at,
            StreamRow.latest,
            RunRow.project,
            RunRow.name,
            RunRow.user,
            RunRow.host,
            RunRow.status,
            ForecastRow.at,
            ForecastRow.eta_s,
            ForecastRow.oom_probability,
        )
        .join(RunRow, RunRow.id == StreamRow.run_id)
        .outerjoin(ForecastRow, is_newest_forecast())
        .where(*is_active)
        .order_by(RunRow.created_at.desc(), StreamRow.id)
        .limit(limit)
    )
    rows = session.execute(query).all()
    if len(rows) < limit:
        return rows, len(rows)
    count = select(func.count()).select_from(StreamRow).join(RunRow, RunRow.id == StreamRow.run_id)
    return rows, session.scalar(count.where(*is_active)) or 0


def used_bytes(latest: Mapping[str, Any]) -> int | None:
    """Return the memory in use that counts against the limit, from a stream's newest readings.

    That is what was allocated, else what all processes use.
    """
    return _int(latest.get("allocated_bytes")) or _int(latest.get("device_used_bytes"))


@lru_cache(maxsize=4096)  # for each column of each chunk
def phase_of(column: str) -> str | None:
    """Return `forward` for `phase_forward_peak_bytes`, None for other columns."""
    if not (column.startswith("phase_") and column.endswith("_peak_bytes")):
        return None
    return column.removeprefix("phase_").removesuffix("_peak_bytes")


def extend_sparkline(
    stored: Mapping[str, Any], samples: int, values: Sequence[Value]
) -> dict[str, Any]:
    """Return a sparkline of `samples` samples extended by `values`."""
    width, peaks = int(stored.get("width", 1)), list(stored.get("peaks", ()))
    while samples + len(values) > SPARKLINE_POINTS * width:
        peaks = [_max(peaks[index : index + 2]) for index in range(0, len(peaks), 2)]
        width *= 2
    first = samples // width
    peaks += [None] * (first - len(peaks))  # samples from before streams had sparklines
    for index in range(first, -(-(samples + len(values)) // width)):
        peak = _max(values[max(0, index * width - samples) : (index + 1) * width - samples])
        if index == len(peaks):
            peaks.append(peak)
        else:
            peaks[index] = _max([peaks[index], peak])
    return {"width": width, "peaks": peaks}


def _memory_values(chunk: ReadChunk) -> list[Value]:
    """Return the values of the best memory column that the chunk has."""
    ints = chunk.arrays.ints
    for name in MEMORY_COLUMNS:
        if name in ints.names and ints.has_any(name):
            return ints.listed(name)
    return []


def _raise_peaks(stream: StreamState, chunk: ReadChunk) -> None:
    maxima = {
        name: int(maximum) for name, (_, maximum, _) in chunk.stats.items() if maximum is not None
    }
    higher = {
        name: maximum
        for name, maximum in maxima.items()
        if (name in PEAK_COLUMNS or phase_of(name)) and maximum > stream.peaks.get(name, -1)
    }
    # known phases still rise; only new ones are refused
    if len(stream.peaks) > MAX_PEAKS:
        higher = {name: maximum for name, maximum in higher.items() if name in stream.peaks}
    if higher:
        stream.peaks = {**stream.peaks, **higher}
    allocated = [maxima.get(name) for name in ("peak_allocated_bytes", "allocated_bytes")]
    peak = _max(allocated)
    if peak is None:
        peak = maxima.get("device_used_bytes")
    stream.peak_bytes = _max([stream.peak_bytes, peak])


def _max(values: Sequence[Value]) -> int | None:
    numbers = [value for value in values if value is not None]
    return int(max(numbers)) if numbers else None


def _int(value: Value) -> int | None:
    return None if value is None else int(value)


def _of_rank(rank: RankRow) -> tuple[ColumnElement[bool], ...]:
    return (
        StreamRow.run_id == rank.run_id,
        StreamRow.rank == rank.rank,
        StreamRow.attempt == rank.attempt,
    )


def _create(session: Session, rank: RankRow, device: str) -> StreamRow:
    """Create a stream. Raises WireError for one more than MAX_STREAMS."""
    if (session.scalar(select(func.count()).where(*_of_rank(rank))) or 0) >= MAX_STREAMS:
        raise WireError(f"A rank has at most {MAX_STREAMS} devices and streams.")
    stream = StreamRow(
        run_id=rank.run_id,
        rank=rank.rank,
        attempt=rank.attempt,
        is_current=rank.is_current,
        device=device,
        kind=_KIND_OF_DEVICE.get(device, "cuda"),
        name=device,
        samples=0,
        chunks=0,
        latest={},
        peaks={},
        sparkline={},
    )
    session.add(stream)
    # its id is needed for the chunks of the same batch
    session.flush()
    return stream
