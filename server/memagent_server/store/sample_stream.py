"""All samples of a run as frames, without decoding them: as fast as the database reads.

Each few chunks are read in a transaction of their own, so that a slow reader blocks no writer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from memagent.arrays.stored_chunks import without_zstd
from memagent.wire.fields import SCALARS_STREAM
from memagent.wire.sample_stream import END, SampleFrame, deflate, encode_frame
from memagent_server.store.engine import Database
from memagent_server.store.models import ChunkRow, StreamRow

_CHUNKS_AT_ONCE = 64


@dataclass(frozen=True)
class SampleQuery:
    """Which samples: of devices or scalars, of some ranks, of chunks that overlap the steps."""

    of_scalars: bool = False
    ranks: Sequence[int] = ()
    first: int | None = None
    last: int | None = None


def sample_frames(
    database: Database, run_id: str, query: SampleQuery, *, with_zstd: bool = True
) -> Generator[bytes, None, None]:
    """Yield encoded frames, in order of launch, rank, device and arrival."""
    is_scalars = StreamRow.device == SCALARS_STREAM
    streams = select(StreamRow.id, StreamRow.rank, StreamRow.attempt, StreamRow.device).where(
        StreamRow.run_id == run_id, is_scalars if query.of_scalars else ~is_scalars
    )
    if query.ranks:
        streams = streams.where(StreamRow.rank.in_(query.ranks))
    with database.read() as session:
        order = (StreamRow.attempt, StreamRow.rank, StreamRow.id)
        rows = session.execute(streams.order_by(*order)).all()
    # the transaction has ended: each page of chunks is read in another
    for stream_id, rank, attempt, device in rows:
        for known_rows, packed in _chunks(database, run_id, stream_id, query):
            chunk = packed if with_zstd or not packed else deflate(without_zstd(packed))
            is_deflated = not with_zstd and bool(packed)
            yield encode_frame(SampleFrame(rank, attempt, device, known_rows, chunk, is_deflated))
    yield END


def _chunks(
    database: Database, run_id: str, stream_id: int, query: SampleQuery
) -> Iterator[tuple[int, bytes]]:
    """Yield (samples that were in an earlier chunk, the chunk) of a stream.

    Chunks that are compacted between two transactions may overlap the ones before.
    """
    chunks = select(ChunkRow.seq, ChunkRow.rows, ChunkRow.packed).where(
        ChunkRow.run_id == run_id, ChunkRow.stream_id == stream_id
    )
    if query.first is not None:
        chunks = chunks.where(ChunkRow.last_step >= query.first)
    if query.last is not None:
        chunks = chunks.where(ChunkRow.first_step <= query.last)
    after_seq = -1
    while True:
        with database.read() as session:
            next_chunks = chunks.where(ChunkRow.seq > after_seq).order_by(ChunkRow.seq)
            page = session.execute(next_chunks.limit(_CHUNKS_AT_ONCE)).all()
        for seq, rows, packed in page:
            yield max(0, after_seq - (seq - rows)), packed
            after_seq = seq
        if len(page) < _CHUNKS_AT_ONCE:
            return
