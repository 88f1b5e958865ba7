"""Streams: the samples of one rank and device in one attempt, and the scalars of a rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent.wire.columns import Value
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Device
from memagent_server.store import sparkline
from memagent_server.store.chunks import ReadChunk
from memagent_server.store.compiled_statements import CompiledWrite
from memagent_server.store.models import Rank, Stream

PEAK_COLUMNS = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "process_device_bytes",
    "device_used_bytes",
)
"""Columns whose maximum over the launch is kept with the stream, beside those of the phases: a prediction has a figure for them."""
_ALLOCATED = ("peak_allocated_bytes", "allocated_bytes", "device_used_bytes")
_MOST_PEAKS = 64
"""Users name phases of their own; a script that invents one a step must not grow its stream's row."""

_KNOWN_KINDS = {SCALARS_STREAM: "scalars", "host": "host"}


@dataclass
class StreamState:
    """What changes in a stream's row with each chunk."""

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
        """The highest share of its limit that it has reached; 0 where that is not known."""
        return (self.peak_bytes or 0) / self.limit_bytes if self.limit_bytes else 0.0


STREAM_STATE = tuple(StreamState.__dataclass_fields__)
_CHANGING = tuple(name for name in STREAM_STATE if name not in ("id", "kind"))
_WRITE = CompiledWrite(
    update(Stream)
    .where(Stream.id == bindparam("of_stream"))
    .values({name: bindparam(name) for name in _CHANGING})
)


def write_states(connection: Connection, states: Sequence[StreamState]) -> None:
    """The run's row must be locked since they were read."""
    rows = [
        {"of_stream": state.id, **{name: getattr(state, name) for name in _CHANGING}}
        for state in states
    ]
    _WRITE.run(connection, *rows)


def grow(stream: StreamState, chunk: ReadChunk, now: float) -> None:
    """Count a chunk that was added to the stream. One that comes late does not turn back what is newest."""
    stream.chunks += 1
    if stream.kind != SCALARS_STREAM:
        stream.sparkline = sparkline.extended(stream.sparkline, stream.samples, _memory(chunk))
    stream.samples += chunk.rows
    stream.is_compacted = False
    stream.first_step = (
        chunk.first_step if stream.first_step is None else min(chunk.first_step, stream.first_step)
    )
    if stream.last_step is None or chunk.last_step >= stream.last_step:
        stream.last_step = chunk.last_step
        _show_newest(stream, chunk.newest, now)
    if stream.kind != SCALARS_STREAM:
        _raise_peaks(stream, chunk)


def enter_streams(session: Session, rank: Rank, devices: Iterable[Device]) -> None:
    """Make or refresh the streams of the devices that a rank told of. The run's row must be locked."""
    existing = {stream.device: stream for stream in _of(session, rank)}
    for device in devices:
        stream = existing.get(device.id) or _new(session, rank, device.id)
        existing[device.id] = stream
        stream.kind, stream.name = device.kind, device.name
        if device.limit_bytes is not None:
            stream.limit_bytes, stream.limit_source = device.limit_bytes, device.limit_source


def enter_stream(session: Session, rank: Rank, device: str) -> Stream:
    """The stream of that name, made if it is new. The run's row must be locked."""
    found = session.scalar(select(Stream).where(*_key(rank), Stream.device == device))
    return found or _new(session, rank, device)


def current_streams(
    session: Session, run_ids: Collection[str], *, scalars: bool = False
) -> list[Stream]:
    """Streams of the newest launch of each run, without scalars unless asked for, in the order in which they were made."""
    query = select(Stream).where(Stream.run_id.in_(run_ids), Stream.is_current).order_by(Stream.id)
    if not scalars:
        query = query.where(Stream.kind != SCALARS_STREAM)
    return list(session.scalars(query))


def used_bytes(stream: Stream) -> int | None:
    """What the stream's device holds now, as far as it counts against the limit: allocated, else used by everybody."""
    return used_of(stream.latest)


def used_of(latest: Mapping[str, Any]) -> int | None:
    """The same from the newest reading of every column."""
    return _int(latest.get("allocated_bytes")) or _int(latest.get("device_used_bytes"))


def phase_of(column: str) -> str | None:
    """`forward` of `phase_forward_peak_bytes`; None for a column that is no phase's peak."""
    if not (column.startswith("phase_") and column.endswith("_peak_bytes")):
        return None
    return column.removeprefix("phase_").removesuffix("_peak_bytes")


def _memory(chunk: ReadChunk) -> dict[str, list[Value]]:
    """The best reading of memory that the chunk has."""
    ints = chunk.arrays.ints
    name = next(
        (name for name in sparkline.COLUMNS if name in ints.names and ints.has_any(name)), None
    )
    if name is None:
        return {}
    values: list[Value] = ints.column(name).tolist()
    if not ints.has_all(name) and ints.present is not None:
        present = ints.present[ints.names.index(name)].tolist()
        values = [
            value if is_there else None for value, is_there in zip(values, present, strict=True)
        ]
    return {name: values}


def _show_newest(stream: StreamState, newest: Mapping[str, Value], now: float) -> None:
    known = {
        name: value
        for name, value in newest.items()
        if value is not None or name not in stream.latest
    }
    stream.latest = {**stream.latest, **known}
    stream.last_sample_at = float(newest.get("time_s") or now)
    limit = newest.get("limit_bytes")
    if limit is not None and stream.kind != SCALARS_STREAM:
        stream.limit_bytes = int(limit)


def _raise_peaks(stream: StreamState, chunk: ReadChunk) -> None:
    """Keep the maxima of a chunk's columns where they are higher than what was seen before."""
    higher = {
        name: int(most)
        for name, (_, most, _) in chunk.stats.items()
        if most is not None
        and (name in PEAK_COLUMNS or phase_of(name))
        and most > stream.peaks.get(name, -1)
    }
    if len(stream.peaks) > _MOST_PEAKS:
        higher = {name: most for name, most in higher.items() if name in stream.peaks}
    if higher:
        stream.peaks = {**stream.peaks, **higher}
    peak = _peak_of(chunk)
    stream.peak_bytes = max(
        (size for size in (stream.peak_bytes, peak) if size is not None), default=None
    )


def _peak_of(chunk: ReadChunk) -> int | None:
    """Most allocated in a chunk."""
    most = {name: chunk.stats[name][1] for name in _ALLOCATED if name in chunk.stats}
    known = [int(value) for name in _ALLOCATED[:2] if (value := most.get(name)) is not None]
    return max(known) if known else _int(most.get("device_used_bytes"))


def _int(value: Value) -> int | None:
    return None if value is None else int(value)


def _of(session: Session, rank: Rank) -> list[Stream]:
    return list(session.scalars(select(Stream).where(*_key(rank))))


def _key(rank: Rank) -> tuple[ColumnElement[bool], ...]:
    return (Stream.run_id == rank.run_id, Stream.rank == rank.rank, Stream.attempt == rank.attempt)


def _new(session: Session, rank: Rank, device: str) -> Stream:
    stream = Stream(
        run_id=rank.run_id,
        rank=rank.rank,
        attempt=rank.attempt,
        is_current=rank.is_current,
        device=device,
        kind=_KNOWN_KINDS.get(device, "cuda"),
        name=device,
        samples=0,
        chunks=0,
        latest={},
        peaks={},
        sparkline={},
    )
    session.add(stream)
    session.flush()
    return stream
