"""Samples for charts: any window of any run, in at most so many points, with no spike lost and no longer to read than the chart is wide.

1. Of the stream's rollups the finest level is chosen that has no more buckets in the window than points are wanted. What came in since
   is known by the summaries of its chunks.
2. A bucket that sticks out of the window is replaced by the chunks that it stands for, and one of these that does by the samples that
   are inside. So the window is exact to the step; where the samples were let go of, it is to a chunk.
3. Where the window holds fewer chunks than points, and not very many samples, all of them are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire.columns import Value
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.buckets import EMPTY, Buckets, chain, fewer, gather
from memagent_server.store.chunks import Stats, stats_of, unpack_stats
from memagent_server.store.models import Chunk, Rank, Stream
from memagent_server.store.packing import unseal
from memagent_server.store.rollups import Levels

DEFAULT_FIELDS = ("allocated_bytes", "peak_allocated_bytes", "device_used_bytes")
MANY_SAMPLES = 100_000
"""More than this are not decoded for one chart: that would take tenths of a second."""


@dataclass(frozen=True)
class Window:
    """Steps `first` to `last`, inclusive, in at most `points` points of the columns `wanted`."""

    first: int | None
    last: int | None
    points: int
    wanted: frozenset[str]

    def holds(self, low: Value, high: Value) -> bool:
        """Whether steps `low` to `high` are all inside."""
        return not self._is_before(low) and not self._is_behind(high)

    def touches(self, low: Value, high: Value) -> bool:
        return not self._is_before(high) and not self._is_behind(low)

    def _is_before(self, step: Value) -> bool:
        return self.first is not None and (step or 0) < self.first

    def _is_behind(self, step: Value) -> bool:
        return self.last is not None and (step or 0) > self.last


class Unit(NamedTuple):
    """A chunk as charts see it; `stats` may lack what is not wanted."""

    seq: int
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
        return _answer(run_id, rank, device, attempt, EMPTY, [name for name in fields if name != "*"])
    names = _names(stream, fields)
    window = Window(first, last, points, frozenset({"step", "time_s", *names}))
    return _answer(run_id, rank, stream.device, stream.attempt, _picture(session, stream, window), names)


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


def _picture(session: Session, stream: Stream, window: Window) -> Buckets:
    levels = Levels(session, stream.run_id, stream.id, window.wanted)
    fresh = _fresh(session, stream, window)
    level, inside, sticking_out = _choose(levels, window, max(window.points // 2, window.points - len(fresh) - 2))
    units = [*_units(levels, level, sticking_out, window), *fresh]
    seen = sum(inside.rows) + sum(unit.rows for unit in units)
    if level <= 0 and len(inside) + len(units) < window.points and seen <= MANY_SAMPLES:
        size = max(1, seen // (2 * window.points))  # twice as fine as the buckets, so that these can be cut evenly
        found = _pieces(session, stream, [*_as_units(inside), *units], window, size)
    else:
        found = chain([inside, _pieces(session, stream, units, window, None)])
    return fewer(_ordered(found), window.points)


def _choose(levels: Levels, window: Window, most: int) -> tuple[int, Buckets, list[int]]:
    """The level to read, its buckets in the window, and the numbers of those that stick out of it."""
    level = levels.coarsest
    if level < 0:
        return level, EMPTY, []
    while True:
        inside, sticking_out = _inside(levels, level, window)
        count = len(inside) + len(sticking_out)
        if level == 0 or 2 * count > most:
            return level, inside, sticking_out
        level -= min(level, max(1, int(log2(most / (count + 2)))))


def _inside(levels: Levels, level: int, window: Window) -> tuple[Buckets, list[int]]:
    parts: list[Buckets] = []
    sticking_out: list[int] = []
    for first, end in levels.spans(level, window.first, window.last):
        found = levels.read(level, first, end)
        if window.first is None and window.last is None:
            parts.append(found)
            continue
        low, high, _ = found.of("step")
        held = [place for place in range(len(found)) if window.holds(low[place], high[place])]
        sticking_out += [
            first + place
            for place in range(len(found))
            if window.touches(low[place], high[place]) and not window.holds(low[place], high[place])
        ]
        if held:
            is_one_stretch = held[-1] - held[0] + 1 == len(held)
            parts.append(found[held[0] : held[-1] + 1] if is_one_stretch else found.pick(held))
    return chain(parts), sticking_out


def _units(levels: Levels, level: int, buckets: Sequence[int], window: Window) -> Iterator[Unit]:
    """The chunks in the window that some buckets stand for."""
    for bucket in buckets:
        for unit in _as_units(levels.read(0, bucket << level, (bucket + 1) << level)):
            low, high, _ = unit.stats["step"]
            if window.touches(low, high):
                yield unit


def _as_units(found: Buckets) -> list[Unit]:
    return [Unit(*facts) for facts in zip(found.seqs, found.rows, found.each(), strict=True)]


def _fresh(session: Session, stream: Stream, window: Window) -> list[Unit]:
    """The chunks in the window that are not rolled up yet."""
    query = select(Chunk.seq, Chunk.rows, Chunk.stats).where(
        Chunk.run_id == stream.run_id, Chunk.stream_id == stream.id, Chunk.seq > stream.rolled_seq
    )
    if window.first is not None:
        query = query.where(Chunk.last_step >= window.first)
    if window.last is not None:
        query = query.where(Chunk.first_step <= window.last)
    return [
        Unit(seq, rows, {name: of for name, of in unpack_stats(stats).items() if name in window.wanted})
        for seq, rows, stats in session.execute(query)
    ]


def _pieces(session: Session, stream: Stream, units: Sequence[Unit], window: Window, size: int | None) -> Buckets:
    """The units, each decoded and cut into parts of `size` samples; without a size, only those that stick out of the window are."""
    wanted = {unit.seq for unit in units if size is not None or not window.holds(*unit.stats["step"][:2])}
    decoded = {
        seq: list(_cut(seq, columns, window, size or len(columns["step"])))
        for seq, columns in _decoded(session, stream, wanted, window)
    }
    return gather(part for unit in units for part in decoded.get(unit.seq, [unit]))


def _decoded(
    session: Session, stream: Stream, seqs: Collection[int], window: Window
) -> Iterator[tuple[int, dict[str, list[Value]]]]:
    if not seqs:
        return
    query = select(Chunk.seq, Chunk.packed).where(
        Chunk.run_id == stream.run_id, Chunk.stream_id == stream.id, Chunk.seq >= min(seqs), Chunk.seq <= max(seqs)
    )
    for seq, packed in session.execute(query):
        if seq in seqs and packed:
            yield seq, unseal(packed, only=window.wanted)


def _cut(seq: int, columns: dict[str, list[Value]], window: Window, size: int) -> Iterator[Unit]:
    """Parts of `size` samples of what of a chunk is in the window; steps never go back within a chunk."""
    steps = [step or 0 for step in columns["step"]]
    begin = 0 if window.first is None else bisect_left(steps, window.first)
    end = len(steps) if window.last is None else bisect_right(steps, window.last)
    for start in range(begin, end, size):
        stop = min(start + size, end)
        stats = stats_of({name: values[start:stop] for name, values in columns.items()})
        yield Unit(seq - len(steps) + stop, stop - start, stats)


def _ordered(found: Buckets) -> Buckets:
    """By steps: what came late stands where it belongs."""
    low = [step or 0 for step in found.of("step")[0]]
    if all(before <= after for before, after in pairwise(low)):
        return found
    return found.pick(sorted(range(len(found)), key=lambda place: (low[place], found.seqs[place])))


def _answer(
    run_id: str, rank: int, device: str | None, attempt: int | None, shown: Buckets, fields: Sequence[str]
) -> dict[str, Any]:
    samples = sum(shown.rows)
    drawn = {name: shown.of(name) for name in fields}
    return {
        "run_id": run_id,
        "rank": rank,
        "device": device,
        "attempt": attempt,
        "samples": samples,
        "bucketed": samples > len(shown),
        "step": shown.of("step")[2],
        "time_s": shown.of("time_s")[2],
        "series": {name: {"min": low, "max": high, "last": last} for name, (low, high, last) in drawn.items()},
    }
