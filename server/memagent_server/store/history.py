"""The past of a stream for who comes late: all of it where it is short, else a row for each chunk and the newest samples in full.

A worker that starts beside a run of a million steps must not decode them all before it can warn of the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memagent.wire.columns import Value, unpack
from memagent_server.store.chunks import Stats, stats_of, unpack_stats
from memagent_server.store.models import Chunk

SHORT_ROWS = 20_000
"""So many samples are read in full: half a second's work."""
NEWEST_ROWS = 1_000
MOST_SUMMARIES = 2_000
_AT_ONCE = 64


@dataclass(frozen=True)
class StoredChunk:
    seq: int
    received_at: float
    columns: dict[str, list[Value]]


def read_chunks(session: Session, stream_id: int, after_seq: int = -1) -> Iterator[StoredChunk]:
    """A stream's chunks after `after_seq`, in order of arrival, without those whose samples were let go of."""
    while True:
        query = (
            select(Chunk.seq, Chunk.received_at, Chunk.packed)
            .where(Chunk.stream_id == stream_id, Chunk.seq > after_seq)
            .order_by(Chunk.seq)
            .limit(_AT_ONCE)
        )
        found = session.execute(query).all()
        for seq, received_at, packed in found:
            if packed:
                yield StoredChunk(seq, received_at, unpack(packed))
        if len(found) < _AT_ONCE:
            return
        after_seq = found[-1].seq


def newest_from(session: Session, stream_id: int) -> int:
    """The chunk from which on all samples are worth reading: 0 where there are few, else that of the newest NEWEST_ROWS."""
    rows = session.scalar(select(func.sum(Chunk.rows)).where(Chunk.stream_id == stream_id)) or 0
    if rows <= SHORT_ROWS:
        return 0
    newest = select(Chunk.seq, Chunk.rows).where(Chunk.stream_id == stream_id).order_by(Chunk.seq.desc())
    seen, first = 0, 0
    for seq, in_chunk in session.execute(newest.limit(NEWEST_ROWS)):
        seen, first = seen + in_chunk, seq
        if seen >= NEWEST_ROWS:
            break
    return first


def read_summaries(session: Session, stream_id: int, before_seq: int, columns: Collection[str]) -> Iterator[Stats]:
    """Minimum, maximum and last of `columns`, about MOST_SUMMARIES times over the chunks before `before_seq`.

    Of every n-th chunk where there are very many; of parts of chunks where there are few: the past must not look shorter than it was.
    """
    parts = MOST_SUMMARIES // max(1, before_seq)
    if parts < 2:
        yield from _of_chunks(session, stream_id, before_seq)
        return
    let_go = select(Chunk.stats).where(
        Chunk.stream_id == stream_id, Chunk.seq < before_seq, func.length(Chunk.packed) == 0
    )
    yield from map(unpack_stats, session.scalars(let_go.order_by(Chunk.seq)))  # the oldest of the stream
    for chunk in read_chunks(session, stream_id):
        if chunk.seq >= before_seq:
            return
        rows = len(chunk.columns["step"])
        width = max(1, -(-rows // parts))
        known = {name: chunk.columns[name] for name in columns if name in chunk.columns}
        for first in range(0, rows, width):
            yield stats_of({name: values[first : first + width] for name, values in known.items()})


def _of_chunks(session: Session, stream_id: int, before_seq: int) -> Iterator[Stats]:
    stride = -(-before_seq // MOST_SUMMARIES)
    query = select(Chunk.stats).where(Chunk.stream_id == stream_id, Chunk.seq < before_seq, Chunk.seq % stride == 0)
    for packed in session.scalars(query.order_by(Chunk.seq)):
        yield unpack_stats(packed)
