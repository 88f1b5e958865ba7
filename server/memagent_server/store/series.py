"""Samples for charts: any window of any run, in at most so many points, with no spike lost.

1. The chunks in the window are listed without their samples.
2. Where there are as many chunks as points, or a quarter of that and very many samples, their summaries (minimum, maximum, last of
   every column) are enough: only chunks that stick out of the window are decoded.
3. Otherwise all are decoded; where the samples were let go of, a chunk's summary stands for them. Either way neighbours go into
   buckets that keep minimum, maximum and last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire.columns import Value, unpack
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.chunks import Stats, stats_of, unpack_stats
from memagent_server.store.models import Chunk, Rank, Stream

DEFAULT_FIELDS = ("allocated_bytes", "peak_allocated_bytes", "device_used_bytes")
MANY_SAMPLES = 100_000
"""More than this are not decoded for one chart where there is another way: that would take seconds."""

_NOTHING: list[Value] = [None, None, None]


class Head(NamedTuple):
    """A chunk without its samples."""

    seq: int
    first_step: int
    last_step: int
    rows: int


@dataclass(frozen=True)
class Piece:
    """Consecutive samples. `stats` has minimum, maximum and last of the columns."""

    rows: int
    stats: Stats


def series(
    session: Session,
    run_id: str,
    *,
    fields: Sequence[str] = DEFAULT_FIELDS,
    rank: int = 0,
    device: str | None = None,
    attempt: int | None = None,
    first: int | None = None,
    last: int | None = None,
    points: int = 1000,
) -> dict[str, Any]:
    """Columns of a rank's device over steps `first` to `last`, inclusive, in the shape of docs/http.md.

    `device` defaults to the rank's first, `attempt` to its newest; `fields` may hold `*` for all.
    """
    stream = _find_stream(session, run_id, rank, device, attempt)
    if stream is None:
        return _answer(run_id, rank, device, attempt, [], [], fields=[name for name in fields if name != "*"])
    names = _names(stream, fields)
    pieces = _pieces(session, stream, names, first, last, points)
    return _answer(run_id, rank, stream.device, stream.attempt, pieces, buckets(pieces, points), fields=names)


def buckets(pieces: Sequence[Piece], points: int) -> list[Piece]:
    """At most `points` pieces: neighbours joined so that each holds about as many samples as any other."""
    if len(pieces) <= points:
        return list(pieces)
    total = sum(piece.rows for piece in pieces)
    grouped: list[list[Piece]] = [[] for _ in range(points)]
    before = 0
    for piece in pieces:
        grouped[before * points // total].append(piece)
        before += piece.rows
    return [_join(group) for group in grouped if group]


def _find_stream(session: Session, run_id: str, rank: int, device: str | None, attempt: int | None) -> Stream | None:
    query = select(Stream).where(Stream.run_id == run_id, Stream.rank == rank)
    query = query.where(Stream.kind != SCALARS_STREAM) if device is None else query.where(Stream.device == device)
    if attempt is None:
        newest = (
            select(Rank.attempt).where(Rank.run_id == run_id, Rank.rank == rank).order_by(Rank.attempt.desc()).limit(1)
        )
        query = query.where(Stream.attempt == newest.scalar_subquery())
    else:
        query = query.where(Stream.attempt == attempt)
    return session.scalar(query.order_by(Stream.id).limit(1))


def _names(stream: Stream, fields: Sequence[str]) -> list[str]:
    if "*" in fields:
        return [name for name in stream.latest if name not in ("step", "time_s")]
    return list(dict.fromkeys(fields))


def _pieces(
    session: Session, stream: Stream, names: Collection[str], first: int | None, last: int | None, points: int
) -> list[Piece]:
    query = select(Chunk.seq, Chunk.first_step, Chunk.last_step, Chunk.rows).where(Chunk.stream_id == stream.id)
    if first is not None:
        query = query.where(Chunk.last_step >= first)
    if last is not None:
        query = query.where(Chunk.first_step <= last)
    heads = [Head(*row) for row in session.execute(query.order_by(Chunk.first_step, Chunk.seq))]
    total = sum(head.rows for head in heads)
    is_enough = len(heads) >= points or (total > MANY_SAMPLES and len(heads) >= points // 4)
    summarized = {head.seq for head in heads if is_enough and _is_within(head, first, last)}
    wanted = {"step", "time_s", *names}
    summaries = _summaries(session, stream, summarized, wanted)
    rest = {head.seq for head in heads} - summarized
    size = max(1, total // (2 * points))  # twice as fine as the buckets, so that these can be cut evenly
    decoded = {seq: list(_cut(columns, first, last, size)) for seq, columns in _decoded(session, stream, rest, wanted)}
    summaries.update(_summaries(session, stream, rest - decoded.keys(), wanted))
    return [piece for head in heads for piece in (summaries.get(head.seq) or decoded.get(head.seq, []))]


def _is_within(head: Head, first: int | None, last: int | None) -> bool:
    return (first is None or head.first_step >= first) and (last is None or head.last_step <= last)


def _summaries(
    session: Session, stream: Stream, seqs: Collection[int], wanted: Collection[str]
) -> dict[int, list[Piece]]:
    if not seqs:
        return {}
    query = select(Chunk.seq, Chunk.rows, Chunk.stats).where(
        Chunk.stream_id == stream.id, Chunk.seq >= min(seqs), Chunk.seq <= max(seqs)
    )
    return {
        seq: [Piece(rows, {name: of for name, of in unpack_stats(stats).items() if name in wanted})]
        for seq, rows, stats in session.execute(query)
        if seq in seqs
    }


def _decoded(
    session: Session, stream: Stream, seqs: Collection[int], wanted: Collection[str]
) -> Iterator[tuple[int, dict[str, list[Value]]]]:
    if not seqs:
        return
    query = select(Chunk.seq, Chunk.packed).where(
        Chunk.stream_id == stream.id, Chunk.seq >= min(seqs), Chunk.seq <= max(seqs)
    )
    for seq, packed in session.execute(query):
        if seq in seqs and packed:
            yield seq, unpack(packed, only=wanted)


def _cut(columns: dict[str, list[Value]], first: int | None, last: int | None, size: int) -> Iterator[Piece]:
    """Pieces of `size` samples of the part of a chunk that is in the window; steps never go back within a chunk."""
    steps = [step or 0 for step in columns["step"]]
    begin = 0 if first is None else bisect_left(steps, first)
    end = len(steps) if last is None else bisect_right(steps, last)
    for start in range(begin, end, size):
        stop = min(start + size, end)
        yield Piece(stop - start, stats_of({name: values[start:stop] for name, values in columns.items()}))


def _join(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    names = dict.fromkeys(name for piece in pieces for name in piece.stats)
    return Piece(
        sum(piece.rows for piece in pieces),
        {name: _joined([piece.stats.get(name, _NOTHING) for piece in pieces]) for name in names},
    )


def _joined(parts: Sequence[list[Value]]) -> list[Value]:
    lows, highs = [part[0] for part in parts if part[0] is not None], [part[1] for part in parts if part[1] is not None]
    last = next((part[2] for part in reversed(parts) if part[2] is not None), None)
    return [min(lows, default=None), max(highs, default=None), last]


def _answer(
    run_id: str,
    rank: int,
    device: str | None,
    attempt: int | None,
    pieces: Sequence[Piece],
    shown: Sequence[Piece],
    *,
    fields: Sequence[str],
) -> dict[str, Any]:
    def column(name: str, statistic: int) -> list[Value]:
        return [piece.stats.get(name, _NOTHING)[statistic] for piece in shown]

    samples = sum(piece.rows for piece in pieces)
    return {
        "run_id": run_id,
        "rank": rank,
        "device": device,
        "attempt": attempt,
        "samples": samples,
        "bucketed": samples > len(shown),
        "step": column("step", 2),
        "time_s": column("time_s", 2),
        "series": {name: {"min": column(name, 0), "max": column(name, 1), "last": column(name, 2)} for name in fields},
    }
