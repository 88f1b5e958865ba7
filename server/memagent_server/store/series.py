"""Samples for charts: any window of any run, in at most so many points, with no spike lost and no longer to read than the chart is wide.

1. Of the stream's rollups the finest level is chosen that has no more buckets in the window than points are wanted. What came in since
   is known by the summaries of its chunks.
2. A bucket that sticks out of the window is replaced by the chunks that it stands for, and one of these that does by the samples that
   are inside. So the window is exact to the step; where the samples were let go of, it is to a chunk.
3. Where the window holds fewer chunks than points, and not very many samples, all of them are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ScalarSelect, bindparam, func, select
from sqlalchemy.orm import Session

from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.buckets import EMPTY, Array, Buckets, chain, cut, fewer, gather, listed
from memagent_server.store.chunks import unpack_stats
from memagent_server.store.models import Chunk, Rank, Stream
from memagent_server.store.packing import unseal_arrays
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

    @property
    def is_whole(self) -> bool:
        return self.first is None and self.last is None

    def holds(self, found: Buckets) -> NDArray[np.bool_]:
        """Which buckets are inside with all their steps."""
        low, high, _ = found.of("step")
        return self._mask(low, high)

    def touches(self, found: Buckets) -> NDArray[np.bool_]:
        """Which have steps inside."""
        low, high, _ = found.of("step")
        return self._mask(high, low)

    def rows_of(self, steps: Array) -> tuple[int, int]:
        """From which to before which row a chunk is inside; steps never go back within one."""
        begin = 0 if self.first is None else int(np.searchsorted(steps, self.first, "left"))
        end = len(steps) if self.last is None else int(np.searchsorted(steps, self.last, "right"))
        return begin, end

    def _mask(self, not_before: Array, not_behind: Array) -> NDArray[np.bool_]:
        found = np.ones(len(not_before), np.bool_)
        if self.first is not None:
            found &= not_before >= self.first
        if self.last is not None:
            found &= not_behind <= self.last
        return found


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
        return _answer(
            run_id, rank, device, attempt, EMPTY, [name for name in fields if name != "*"]
        )
    names = _names(session, stream, fields)
    window = Window(first, last, points, frozenset({"step", "time_s", *names}))
    return _answer(
        run_id, rank, stream.device, stream.attempt, _picture(session, stream, window), names
    )


class Drawn(NamedTuple):
    """What a chart asks of its stream."""

    id: int
    run_id: str
    device: str
    attempt: int
    samples: int
    rolled_seq: int


_newest: ScalarSelect[int] = (
    select(func.max(Rank.attempt))
    .where(Rank.run_id == bindparam("run_id"), Rank.rank == bindparam("rank"))
    .scalar_subquery()
)
_STREAM = (
    select(
        Stream.id, Stream.run_id, Stream.device, Stream.attempt, Stream.samples, Stream.rolled_seq
    )
    .where(Stream.run_id == bindparam("run_id"), Stream.rank == bindparam("rank"))
    .order_by(Stream.id)
    .limit(1)
)
_BY_DEVICE = {
    True: _STREAM.where(Stream.device == bindparam("device")),
    False: _STREAM.where(Stream.kind != SCALARS_STREAM),
}
_STREAMS = {
    (has_device, has_attempt): query.where(
        Stream.attempt == (bindparam("attempt") if has_attempt else _newest)
    )
    for has_device, query in _BY_DEVICE.items()
    for has_attempt in (True, False)
}
"""By what is asked for. Statements that are built once: for a chart of two milliseconds that is one less."""
_FRESH = select(Chunk.seq, Chunk.rows, Chunk.stats).where(
    Chunk.stream_id == bindparam("stream_id"),
    Chunk.run_id == bindparam("run_id"),
    Chunk.seq > bindparam("after_seq"),
)


def _find_stream(
    session: Session, run_id: str, rank: int, device: str | None, attempt: int | None
) -> Drawn | None:
    query = _STREAMS[device is not None, attempt is not None]
    asked = {"run_id": run_id, "rank": rank, "device": device, "attempt": attempt}
    found = session.execute(query, asked).first()
    return None if found is None else Drawn._make(found)


def _names(session: Session, stream: Drawn, fields: Sequence[str]) -> list[str]:
    if "*" not in fields:
        return list(dict.fromkeys(fields))
    latest = session.scalar(select(Stream.latest).where(Stream.id == stream.id)) or {}
    return [name for name in latest if name not in ("step", "time_s")]


def _picture(session: Session, stream: Drawn, window: Window) -> Buckets:
    levels = Levels(session, stream.run_id, stream.id, window.wanted)
    fresh = _fresh(session, stream, window)
    level, inside, sticking_out = _choose(
        levels, window, max(window.points // 2, window.points - len(fresh) - 2)
    )
    units = chain([*(_units(levels, level, bucket, window) for bucket in sticking_out), fresh])
    seen = inside.samples + units.samples
    if level <= 0 and len(inside) + len(units) < window.points and seen <= MANY_SAMPLES:
        size = max(
            1, seen // (2 * window.points)
        )  # twice as fine as the buckets, so that these can be cut evenly
        found = _pieces(session, stream, chain([inside, units]), window, size)
    else:
        found = chain([inside, _pieces(session, stream, units, window, None)])
    return fewer(_ordered(found), window.points)


def _choose(levels: Levels, window: Window, most: int) -> tuple[int, Buckets, list[int]]:
    """The level to read, its buckets in the window, and the numbers of those that stick out of it."""
    level = levels.coarsest
    if level < 0:
        return level, EMPTY, []
    if window.is_whole:
        level = next((finer for finer in range(level) if levels.count(finer) <= most), level)
        return level, levels.read(level), []
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
        held, touched = window.holds(found), window.touches(found)
        parts.append(found if held.all() else found.pick(held))
        sticking_out += [first + int(place) for place in np.flatnonzero(touched & ~held)]
    return chain(parts), sticking_out


def _units(levels: Levels, level: int, bucket: int, window: Window) -> Buckets:
    """The chunks in the window that a bucket stands for."""
    found = levels.read(0, bucket << level, (bucket + 1) << level)
    return found.pick(window.touches(found))


def _fresh(session: Session, stream: Drawn, window: Window) -> Buckets:
    """The chunks in the window that are not rolled up yet."""
    if stream.rolled_seq == stream.samples - 1:
        return EMPTY
    query = _FRESH
    if window.first is not None:
        query = query.where(Chunk.last_step >= window.first)
    if window.last is not None:
        query = query.where(Chunk.first_step <= window.last)
    key = {"stream_id": stream.id, "run_id": stream.run_id, "after_seq": stream.rolled_seq}
    return gather(
        (seq, rows, {name: of for name, of in unpack_stats(stats).items() if name in window.wanted})
        for seq, rows, stats in session.execute(query, key)
    )


def _pieces(
    session: Session, stream: Drawn, units: Buckets, window: Window, size: int | None
) -> Buckets:
    """The units, each decoded and cut into parts of `size` samples; without a size, only those that stick out of the window are."""
    if not len(units):
        return EMPTY
    is_wanted = np.ones(len(units), np.bool_) if size is not None else ~window.holds(units)
    parts, decoded = [], []
    for seq, columns in _decoded(session, stream, units.seqs[is_wanted].tolist(), window):
        begin, end = window.rows_of(columns["step"][0])
        parts.append(cut(seq, columns, begin, end, size or len(columns["step"][0])))
        decoded.append(seq)
    return chain([units.pick(~np.isin(units.seqs, decoded)), *parts])


def _decoded(
    session: Session, stream: Drawn, seqs: Collection[int], window: Window
) -> Iterator[tuple[int, dict[str, tuple[Array, NDArray[np.bool_] | None]]]]:
    if not seqs:
        return
    query = select(Chunk.seq, Chunk.packed).where(
        Chunk.run_id == stream.run_id,
        Chunk.stream_id == stream.id,
        Chunk.seq >= min(seqs),
        Chunk.seq <= max(seqs),
    )
    wanted = set(seqs)
    for seq, packed in session.execute(query):
        if seq in wanted and packed:
            yield seq, unseal_arrays(packed, window.wanted)


def _ordered(found: Buckets) -> Buckets:
    """By steps: what came late stands where it belongs."""
    low = found.of("step")[0]
    return found if (low[1:] >= low[:-1]).all() else found.pick(np.lexsort((found.seqs, low)))


def _answer(
    run_id: str,
    rank: int,
    device: str | None,
    attempt: int | None,
    shown: Buckets,
    fields: Sequence[str],
) -> dict[str, Any]:
    samples = shown.samples
    drawn = {name: listed(shown.of(name)) for name in fields}
    return {
        "run_id": run_id,
        "rank": rank,
        "device": device,
        "attempt": attempt,
        "samples": samples,
        "bucketed": samples > len(shown),
        "step": listed(shown.of("step")[2]),
        "time_s": listed(shown.of("time_s")[2]),
        "series": {
            name: {"min": low, "max": high, "last": last}
            for name, (low, high, last) in drawn.items()
        },
    }
