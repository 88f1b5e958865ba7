"""Streams: the samples of one rank and device in one attempt, and the scalars of a rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from memagent.wire.columns import Value
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.messages import Device
from memagent_server.store.models import Rank, Stream

PEAK_COLUMNS = ("peak_allocated_bytes", "peak_reserved_bytes", "process_device_bytes", "device_used_bytes")
"""Columns whose maximum over the launch is kept with the stream, beside those of the phases: a prediction has a figure for them."""
_MOST_PEAKS = 64
"""Users name phases of their own; a script that invents one a step must not grow its stream's row."""

_KNOWN_KINDS = {SCALARS_STREAM: "scalars", "host": "host"}


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


def current_streams(session: Session, run_ids: Collection[str], *, scalars: bool = False) -> list[Stream]:
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


def raise_peaks(stream: Stream, columns_max: dict[str, Value]) -> None:
    """Keep the maxima of a chunk's columns where they are higher than what was seen before."""
    higher = {
        name: int(most)
        for name, most in columns_max.items()
        if most is not None and (name in PEAK_COLUMNS or phase_of(name)) and most > stream.peaks.get(name, -1)
    }
    if len(stream.peaks) > _MOST_PEAKS:
        higher = {name: most for name, most in higher.items() if name in stream.peaks}
    if higher:
        stream.peaks = {**stream.peaks, **higher}
    peak = _peak_of(columns_max)
    stream.peak_bytes = max((size for size in (stream.peak_bytes, peak) if size is not None), default=None)


def phase_of(column: str) -> str | None:
    """`forward` of `phase_forward_peak_bytes`; None for a column that is no phase's peak."""
    is_phase = column.startswith("phase_") and column.endswith("_peak_bytes")
    return column.removeprefix("phase_").removesuffix("_peak_bytes") if is_phase else None


def _peak_of(columns_max: dict[str, Value]) -> int | None:
    """Most allocated, from the maxima of a chunk's columns."""
    candidates = [columns_max.get(name) for name in ("peak_allocated_bytes", "allocated_bytes")]
    known = [int(value) for value in candidates if value is not None]
    return max(known) if known else _int(columns_max.get("device_used_bytes"))


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
    )
    session.add(stream)
    session.flush()
    return stream
