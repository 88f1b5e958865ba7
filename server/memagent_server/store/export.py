"""All samples of a run as CSV: one row a sample, a chunk in memory at a time however long the run is."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.wire.columns import Value, unpack
from memagent_server.store.chunks import unpack_stats
from memagent_server.store.engine import Database
from memagent_server.store.models import Chunk, Stream

PLACE = ("rank", "device", "attempt")
_FIRST = ("step", "time_s")


def csv_lines(database: Database, run_id: str) -> Iterator[str]:
    """Pieces of a CSV file: a header, then the samples of each stream (rank, device, attempt; scalars are a device) as they arrived.

    Columns are all that the run has; a missing value is an empty field. Chunks whose samples were let go of are left out. Chunks are
    read in transactions of their own, so that a slow reader holds up nobody; what arrives meanwhile may come too.
    """
    with database.read() as session:
        streams = _streams(session, run_id)
        names = _names(session, run_id)
    yield _text([[*PLACE, *names]])
    for stream in streams:
        place = [stream.rank, stream.device, stream.attempt]
        for columns in _chunks(database, stream.id):
            nothing: list[Value] = [None] * len(columns["step"])
            rows = zip(*(columns.get(name, nothing) for name in names), strict=True)
            yield _text([[*place, *row] for row in rows])


def _streams(session: Session, run_id: str) -> Sequence[Stream]:
    query = select(Stream).where(Stream.run_id == run_id)
    return session.scalars(query.order_by(Stream.attempt, Stream.rank, Stream.id)).all()


def _names(session: Session, run_id: str) -> list[str]:
    """Every column of the run: step and time first, then by name."""
    stats = select(Chunk.stats).join(Stream, Stream.id == Chunk.stream_id).where(Stream.run_id == run_id)
    found: set[str] = set()
    for packed in session.scalars(stats.execution_options(yield_per=500)):
        found.update(unpack_stats(packed))
    return [*_FIRST, *sorted(found.difference(_FIRST))]


def _chunks(database: Database, stream_id: int) -> Iterator[dict[str, list[Value]]]:
    seq = -1
    while True:
        query = select(Chunk.seq, Chunk.packed).where(Chunk.stream_id == stream_id, Chunk.seq > seq)
        with database.read() as session:
            found = session.execute(query.order_by(Chunk.seq).limit(1)).first()
        if found is None:
            return
        seq = found.seq
        if found.packed:
            yield unpack(found.packed)


def _text(rows: Sequence[Sequence[object]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
