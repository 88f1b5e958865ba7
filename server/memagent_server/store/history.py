"""A stream's past as the forecaster of a worker sees it: how far it is decided, the old part in summaries, the newest samples in full.

A worker that starts beside a run of a million steps must not decode them all before it can warn of the next one.
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
from memagent_server.store.models import Chunk
from memagent_server.store.packing import unseal
from memagent_server.store.rechunk import UNIT_ROWS
from memagent_server.store.rollups import RollupLevels

SHORT_ROWS = 20_000
"""So many samples are read in full: half a second's work."""
NEWEST_ROWS = 1_000
MOST_SUMMARIES = 2_000
_AT_ONCE = 64


class StreamKey(Protocol):
    """What names a stream, and says how long it is."""

    @property
    def id(self) -> int: ...
    @property
    def run_id(self) -> str: ...
    @property
    def samples(self) -> int: ...


@dataclass(frozen=True)
class StoredChunk:
    """Consecutive samples; `seq` is the place of the last one in the stream."""

    seq: int
    received_at: float
    columns: dict[str, list[Value]]

    @property
    def first_seq(self) -> int:
        return self.seq - len(self.columns["step"]) + 1


def read_chunks(session: Session, stream: StreamKey, after_seq: int = -1) -> Iterator[StoredChunk]:
    """A stream's samples after the place `after_seq`, in order of arrival, without those that were let go of.

    Each comes once, however chunks are cut anew meanwhile.
    """
    while True:
        found = chunks_after(session, stream, after_seq, _AT_ONCE)
        yield from (chunk for chunk in found if chunk.columns)
        if len(found) < _AT_ONCE:
            return
        after_seq = found[-1].seq


def chunks_after(
    session: Session, stream: StreamKey, after_seq: int, limit: int
) -> list[StoredChunk]:
    """The next chunks after a place, the first one without what stands at or before it; without columns where they were let go of."""
    query = select(Chunk.seq, Chunk.rows, Chunk.received_at, Chunk.packed)
    query = query.where(
        Chunk.run_id == stream.run_id, Chunk.stream_id == stream.id, Chunk.seq > after_seq
    )
    found: list[StoredChunk] = []
    for seq, rows, received_at, packed in session.execute(query.order_by(Chunk.seq).limit(limit)):
        columns = unseal(packed) if packed else {}
        known = after_seq - (seq - rows)
        if known > 0:
            columns = {name: values[known:] for name, values in columns.items()}
        found.append(StoredChunk(seq, received_at, columns))
    return found


def newest_from(stream: StreamKey) -> int:
    """The place from which on all samples are worth reading: 0 where there are few, else that of the newest NEWEST_ROWS."""
    return 0 if stream.samples <= SHORT_ROWS else stream.samples - NEWEST_ROWS


def read_summaries(
    session: Session, stream: StreamKey, before_seq: int, columns: Collection[str]
) -> Iterator[Stats]:
    """Minimum, maximum and last of `columns`, about MOST_SUMMARIES times over the samples before the place `before_seq`.

    Of buckets of the rollups where there are very many; of parts of chunks where there are few: the past must not look shorter than
    it was.
    """
    if before_seq <= 0:
        return
    units = -(-before_seq // UNIT_ROWS)
    parts = MOST_SUMMARIES // max(1, units)
    if parts < 2:
        yield from _summaries(session, stream, before_seq, columns, MOST_SUMMARIES)
        return
    seen = -1
    width = max(1, UNIT_ROWS // parts)
    for chunk in read_chunks(session, stream):
        if seen < 0 < chunk.first_seq:  # the oldest were let go of
            yield from _summaries(session, stream, chunk.first_seq, columns)
        seen = chunk.seq
        if chunk.first_seq >= before_seq:
            return
        rows = min(len(chunk.columns["step"]), before_seq - chunk.first_seq)
        known = {name: chunk.columns[name][:rows] for name in columns if name in chunk.columns}
        for first in range(0, rows, width):
            yield column_stats(
                {name: values[first : first + width] for name, values in known.items()}
            )
    if seen < 0:
        yield from _summaries(session, stream, before_seq, columns)


def _summaries(
    session: Session,
    stream: StreamKey,
    before_seq: int,
    columns: Collection[str],
    most: float = inf,
) -> Iterator[Stats]:
    """Of the finest rollups that are no more than `most`, then of chunks that are not rolled up."""
    levels = RollupLevels(session, stream.run_id, stream.id, columns)
    level = next(
        (level for level in range(levels.coarsest) if levels.count(level) <= most),
        max(0, levels.coarsest),
    )
    found = levels.read(level)
    for seq, _, stats in found.each():
        if seq < before_seq:
            yield stats
    query = select(Chunk.stats).where(Chunk.run_id == stream.run_id, Chunk.stream_id == stream.id)
    query = query.where(
        Chunk.seq > (int(found.seqs[-1]) if len(found) else -1), Chunk.seq < before_seq
    )
    for packed in session.scalars(query.order_by(Chunk.seq)):
        yield {name: of for name, of in unpack_stats(packed).items() if name in columns}
