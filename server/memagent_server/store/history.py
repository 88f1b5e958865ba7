"""A stream's past for the worker's forecaster: old samples as statistics, the newest in full.

A worker that starts during a run of a million steps must not decode them all before it can
forecast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire.columns import Value
from memagent_server.store.chunks import Stats, column_stats, unpack_stats
from memagent_server.store.models import ChunkRow
from memagent_server.store.packing import UNIT_ROWS, unseal
from memagent_server.store.rollups import RollupLevels

SHORT_ROWS = 20_000
"""Samples that are read in full: half a second of work."""
NEWEST_ROWS = 1_000
MAX_SUMMARIES = 2_000
_CHUNKS_PER_QUERY = 64


class StreamKey(Protocol):
    """The key and the length of a stream."""

    @property
    def id(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def samples(self) -> int: ...


@dataclass(frozen=True)
class StoredChunk:
    """Consecutive samples; `seq` is the position of the last one in the stream."""

    seq: int
    received_at: float
    columns: dict[str, list[Value]]

    @property
    def first_seq(self) -> int:
        return self.seq - len(self.columns["step"]) + 1


@dataclass(frozen=True)
class PackedChunk:
    """A chunk as stored. `known_rows` of its samples are in an earlier chunk."""

    seq: int
    received_at: float
    packed: bytes
    known_rows: int

    def unpack(self) -> StoredChunk:
        """Return the new samples; no columns if they were deleted."""
        columns = unseal(self.packed) if self.packed else {}
        if self.known_rows > 0:
            columns = {name: values[self.known_rows :] for name, values in columns.items()}
        return StoredChunk(self.seq, self.received_at, columns)


def read_chunks(session: Session, stream: StreamKey, after_seq: int = -1) -> Iterator[StoredChunk]:
    """Yield a stream's samples after a position, in order of arrival, without deleted ones.

    Each sample comes once, even if chunks are compacted meanwhile.
    """
    while True:
        chunks = chunks_after(session, stream, after_seq, _CHUNKS_PER_QUERY)
        yield from (chunk for chunk in map(PackedChunk.unpack, chunks) if chunk.columns)
        if len(chunks) < _CHUNKS_PER_QUERY:
            return
        after_seq = chunks[-1].seq


def chunks_after(
    session: Session, stream: StreamKey, after_seq: int, limit: int
) -> list[PackedChunk]:
    """Return the next chunks after a position."""
    query = select(ChunkRow.seq, ChunkRow.rows, ChunkRow.received_at, ChunkRow.packed).where(
        ChunkRow.run_id == stream.run_id, ChunkRow.stream_id == stream.id, ChunkRow.seq > after_seq
    )
    return [
        PackedChunk(seq, received_at, packed, after_seq - (seq - rows) if not index else 0)
        for index, (seq, rows, received_at, packed) in enumerate(
            session.execute(query.order_by(ChunkRow.seq).limit(limit))
        )
    ]


def newest_from(stream: StreamKey) -> int:
    """Return the position from which all samples are read: 0 for a short stream."""
    return 0 if stream.samples <= SHORT_ROWS else stream.samples - NEWEST_ROWS


def read_summaries(
    session: Session, stream: StreamKey, before_seq: int, columns: Collection[str]
) -> Iterator[Stats]:
    """Yield about MAX_SUMMARIES statistics of `columns` over the samples before a position.

    They are buckets of the rollups for a long past, parts of chunks for a short one: a past of few
    summaries would look shorter than it was.
    """
    if before_seq <= 0:
        return
    units = -(-before_seq // UNIT_ROWS)
    parts_per_unit = MAX_SUMMARIES // max(1, units)
    if parts_per_unit < 2:
        yield from _rollup_summaries(session, stream, before_seq, columns, MAX_SUMMARIES)
        return
    last_seq = -1
    part_rows = max(1, UNIT_ROWS // parts_per_unit)
    for chunk in read_chunks(session, stream):
        if last_seq < 0 < chunk.first_seq:  # the oldest samples were deleted
            yield from _rollup_summaries(session, stream, chunk.first_seq, columns)
        last_seq = chunk.seq
        if chunk.first_seq >= before_seq:
            return
        rows = min(len(chunk.columns["step"]), before_seq - chunk.first_seq)
        whole = {name: chunk.columns[name][:rows] for name in columns if name in chunk.columns}
        for first in range(0, rows, part_rows):
            part = {name: values[first : first + part_rows] for name, values in whole.items()}
            yield column_stats(part)
    if last_seq < 0:
        yield from _rollup_summaries(session, stream, before_seq, columns)


def _rollup_summaries(
    session: Session,
    stream: StreamKey,
    before_seq: int,
    columns: Collection[str],
    max_buckets: float = inf,
) -> Iterator[Stats]:
    """Yield the finest rollups of at most `max_buckets`, then chunks that aren't rolled up."""
    levels = RollupLevels(session, stream.run_id, stream.id, columns)
    fine = (level for level in range(levels.coarsest) if levels.count(level) <= max_buckets)
    buckets = levels.read(next(fine, max(0, levels.coarsest)))
    for seq, _, stats in buckets.each():
        if seq < before_seq:
            yield stats
    # of the buckets that were read: the stream's row may have moved on since
    rolled_seq = int(buckets.seqs[-1]) if len(buckets) else -1
    query = select(ChunkRow.stats).where(
        ChunkRow.run_id == stream.run_id,
        ChunkRow.stream_id == stream.id,
        ChunkRow.seq > rolled_seq,
        ChunkRow.seq < before_seq,
    )
    for packed in session.scalars(query.order_by(ChunkRow.seq)):
        yield {name: of for name, of in unpack_stats(packed).items() if name in columns}
