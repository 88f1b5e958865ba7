"""Samples for charts: any window of a run in a limited number of points, without losing a spike.

1. The finest level of the stream's rollups is chosen that has at most as many buckets in the window
   as points are wanted. Newer chunks count by their statistics.
2. A bucket that overlaps an end of the window is replaced by its chunks, and such a chunk by its
   samples in the window. The window is exact to the step, or to the chunk if samples were deleted.
3. If the window has fewer chunks than points, and not too many samples, all samples are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import NamedTuple

import numpy as np
from sqlalchemy import ScalarSelect, bindparam, func, select
from sqlalchemy.orm import Session

from memagent.arrays.chunk_arrays import Array, Mask
from memagent.arrays.stored_chunks import unseal_arrays
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.schemas.runs import Series, Statistics
from memagent_server.store.buckets import (
    EMPTY,
    Buckets,
    as_lists,
    chain,
    from_samples,
    from_stats,
    merge_to,
)
from memagent_server.store.chunks import unpack_stats
from memagent_server.store.models import ChunkRow, RankRow, StreamRow
from memagent_server.store.rollups import RollupLevels

DEFAULT_FIELDS = ("allocated_bytes", "peak_allocated_bytes", "device_used_bytes")
MAX_DECODED_SAMPLES, MAX_DECODED_VALUES = 100_000, 2_000_000
"""Limits for one chart: decoding more would take tenths of a second."""
MIN_POINTS, MAX_VALUES = 10, 200_000
"""Limits for one chart: one of many columns has fewer points."""


@dataclass(frozen=True)
class Window:
    """Steps `first` to `last`, inclusive, in at most `points` points of `columns`."""

    first: int | None
    last: int | None
    points: int
    columns: frozenset[str]

    @property
    def is_whole(self) -> bool:
        return self.first is None and self.last is None

    def contains(self, buckets: Buckets) -> Mask:
        """Return which buckets have all their steps in the window."""
        low, high, _ = buckets.column("step")
        return self._mask(low, high)

    def overlaps(self, buckets: Buckets) -> Mask:
        """Return which buckets have steps in the window."""
        low, high, _ = buckets.column("step")
        return self._mask(high, low)

    def rows_of(self, steps: Array) -> tuple[int, int]:
        """Return the first row of a chunk in the window, and the row after the last one."""
        begin = 0 if self.first is None else int(np.searchsorted(steps, self.first, "left"))
        end = len(steps) if self.last is None else int(np.searchsorted(steps, self.last, "right"))
        return begin, end

    def _mask(self, from_first: Array, to_last: Array) -> Mask:
        mask = np.ones(len(from_first), np.bool_)
        if self.first is not None:
            mask &= from_first >= self.first
        if self.last is not None:
            mask &= to_last <= self.last
        return mask


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
) -> Series:
    """Return columns of a rank's device over steps `first` to `last`, inclusive.

    `device` defaults to the rank's first, `attempt` to its newest; `*` in `fields` stands for all.
    """
    query = _STREAMS[device is not None, attempt is not None]
    parameters = {"run_id": run_id, "rank": rank, "device": device, "attempt": attempt}
    row = session.execute(query, parameters).first()
    buckets = EMPTY
    names = [name for name in dict.fromkeys(fields) if name != "*"]
    if row is not None:
        stream = ChartStream._make(row)
        device, attempt = stream.device, stream.attempt
        if "*" in fields:
            is_stream = (StreamRow.run_id == run_id, StreamRow.id == stream.id)
            latest = session.scalar(select(StreamRow.latest).where(*is_stream)) or {}
            names = [name for name in latest if name not in ("step", "time_s")]
        points = max(MIN_POINTS, min(points, MAX_VALUES // max(1, len(names))))
        window = Window(first, last, points, frozenset({"step", "time_s", *names}))
        buckets = _window_buckets(session, stream, window)
    samples = buckets.samples
    statistics = {name: Statistics(*as_lists(buckets.column(name))) for name in names}
    return Series(
        run_id=run_id,
        rank=rank,
        device=device,
        attempt=attempt,
        samples=samples,
        bucketed=samples > len(buckets),
        step=as_lists(buckets.column("step")[2]),
        time_s=as_lists(buckets.column("time_s")[2]),
        series=statistics,
    )


class ChartStream(NamedTuple):
    """The columns of a stream that a chart needs."""

    id: int
    run_id: str
    device: str
    attempt: int
    samples: int
    rolled_seq: int


_NEWEST_ATTEMPT: ScalarSelect[int] = (
    select(func.max(RankRow.attempt))
    .where(RankRow.run_id == bindparam("run_id"), RankRow.rank == bindparam("rank"))
    .scalar_subquery()
)
_STREAM = (
    select(
        StreamRow.id,
        StreamRow.run_id,
        StreamRow.device,
        StreamRow.attempt,
        StreamRow.samples,
        StreamRow.rolled_seq,
    )
    .where(StreamRow.run_id == bindparam("run_id"), StreamRow.rank == bindparam("rank"))
    .order_by(StreamRow.id)
    .limit(1)
)
_BY_DEVICE = {
    True: _STREAM.where(StreamRow.device == bindparam("device")),
    False: _STREAM.where(StreamRow.kind != SCALARS_STREAM),
}
_STREAMS = {
    (has_device, has_attempt): query.where(
        StreamRow.attempt == (bindparam("attempt") if has_attempt else _NEWEST_ATTEMPT)
    )
    for has_device, query in _BY_DEVICE.items()
    for has_attempt in (True, False)
}
"""Built once: that saves one of a chart's two milliseconds."""
_NEW_CHUNKS = select(ChunkRow.seq, ChunkRow.rows, ChunkRow.stats).where(
    ChunkRow.stream_id == bindparam("stream_id"),
    ChunkRow.run_id == bindparam("run_id"),
    ChunkRow.seq > bindparam("after_seq"),
)


def _window_buckets(session: Session, stream: ChartStream, window: Window) -> Buckets:
    rollups = RollupLevels(session, stream.run_id, stream.id, window.columns)
    new = _not_rolled_up(session, stream, window)
    # room for the chunks that are not rolled up yet
    max_buckets = max(window.points // 2, window.points - len(new) - 2)
    level, inside, overlapping = _choose_level(rollups, window, max_buckets)
    units = chain([*(_units(rollups, level, bucket, window) for bucket in overlapping), new])
    samples = inside.samples + units.samples
    may_decode = samples <= min(MAX_DECODED_SAMPLES, MAX_DECODED_VALUES // len(window.columns))
    is_few = len(inside) + len(units) < window.points and may_decode
    if level <= 0 and is_few:
        # twice as fine as the points, so that the result can be merged evenly
        size = max(1, samples // (2 * window.points))
        buckets = _decode_units(session, stream, chain([inside, units]), window, size)
    else:
        buckets = chain([inside, _decode_units(session, stream, units, window, None)])
    steps = buckets.column("step")[0]
    if not (steps[1:] >= steps[:-1]).all():  # samples that came late
        buckets = buckets.pick(np.lexsort((buckets.seqs, steps)))
    return merge_to(buckets, window.points)


def _choose_level(
    rollups: RollupLevels, window: Window, max_buckets: int
) -> tuple[int, Buckets, list[int]]:
    """Return a level, its buckets inside the window, and the indexes of those across its ends."""
    level = rollups.coarsest
    if level < 0:
        return level, EMPTY, []
    if window.is_whole:
        finer = (finer for finer in range(level) if rollups.count(finer) <= max_buckets)
        level = next(finer, level)
        return level, rollups.read(level), []
    while True:
        inside, overlapping = _in_window(rollups, level, window)
        count = len(inside) + len(overlapping)
        if level == 0 or 2 * count > max_buckets:
            return level, inside, overlapping
        # each level has twice the buckets of the next: skip levels that would still be too coarse
        level -= min(level, max(1, int(log2(max_buckets / (count + 2)))))


def _in_window(rollups: RollupLevels, level: int, window: Window) -> tuple[Buckets, list[int]]:
    parts: list[Buckets] = []
    overlapping: list[int] = []
    for first, end in rollups.spans(level, window.first, window.last):
        buckets = rollups.read(level, first, end)
        is_inside, overlaps = window.contains(buckets), window.overlaps(buckets)
        parts.append(buckets if is_inside.all() else buckets.pick(is_inside))
        overlapping += [first + int(index) for index in np.flatnonzero(overlaps & ~is_inside)]
    return chain(parts), overlapping


def _units(rollups: RollupLevels, level: int, bucket: int, window: Window) -> Buckets:
    """Return the chunks of a bucket that overlap the window."""
    buckets = rollups.read(0, bucket << level, (bucket + 1) << level)
    return buckets.pick(window.overlaps(buckets))


def _not_rolled_up(session: Session, stream: ChartStream, window: Window) -> Buckets:
    """Return the chunks in the window that are newer than the rollups."""
    if stream.rolled_seq == stream.samples - 1:
        return EMPTY
    query = _NEW_CHUNKS
    if window.first is not None:
        query = query.where(ChunkRow.last_step >= window.first)
    if window.last is not None:
        query = query.where(ChunkRow.first_step <= window.last)
    key = {"stream_id": stream.id, "run_id": stream.run_id, "after_seq": stream.rolled_seq}
    return from_stats(
        (
            seq,
            rows,
            {name: of for name, of in unpack_stats(stats).items() if name in window.columns},
        )
        for seq, rows, stats in session.execute(query, key)
    )


def _decode_units(
    session: Session, stream: ChartStream, units: Buckets, window: Window, size: int | None
) -> Buckets:
    """Decode chunks and divide them into buckets of `size` samples.

    Without a size, decode only those that the window's ends cut. A chunk whose samples were deleted
    stays one bucket.
    """
    if not len(units):
        return EMPTY
    is_decoded = np.ones(len(units), np.bool_) if size is not None else ~window.contains(units)
    seqs = set(units.seqs[is_decoded].tolist())
    parts: list[Buckets] = []
    decoded: list[int] = []
    if seqs:
        query = select(ChunkRow.seq, ChunkRow.packed).where(
            ChunkRow.run_id == stream.run_id,
            ChunkRow.stream_id == stream.id,
            ChunkRow.seq >= min(seqs),
            ChunkRow.seq <= max(seqs),
        )
        for seq, packed in session.execute(query):
            if seq in seqs and packed:
                columns = unseal_arrays(packed, window.columns)
                begin, end = window.rows_of(columns["step"][0])
                bucket_rows = size or len(columns["step"][0])
                parts.append(from_samples(seq, columns, begin, end, bucket_rows))
                decoded.append(seq)
    return chain([units.pick(~np.isin(units.seqs, decoded)), *parts])
