"""Verdict on a run: the stored samples compared with what was sent and what was acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks.reliability.expected_samples import ROWS, Row, has_event, rows_of, stored_rows
from benchmarks.reliability.load import Record
from memagent_server.store.engine import Database
from memagent_server.store.models import EventRow, RankRow, StreamRow
from memagent_server.store.samples import read_samples


@dataclass(frozen=True)
class Verdict:
    """Counts of samples. `lost` were acknowledged and are missing; `foreign` are stored but were
    never sent in that form.
    """

    sent: int
    acknowledged: int
    found: int
    lost: int
    doubled: int
    foreign: int
    unbooked: tuple[str, ...] = ()
    """Contradictions between the samples and the counters (events, sequence numbers, numbers of
    samples).
    """

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.doubled or self.foreign or self.unbooked)


def judge(record: Record, in_store: Iterable[Row], unbooked: tuple[str, ...] = ()) -> Verdict:
    """Compare the rows of the store with the record. Unacknowledged samples may be stored once."""
    rows_by_batch = {
        key: list(rows_of(record.run_id, *key, at)) for key, at in record.batches.items()
    }
    may_be = {row for rows in rows_by_batch.values() for row in rows}
    must_be = {row for key in record.acknowledged for row in rows_by_batch[key]}
    counts = Counter(in_store)
    return Verdict(
        sent=len(may_be),
        acknowledged=len(must_be),
        found=sum(counts.values()),
        lost=len(must_be - counts.keys()),
        doubled=sum(count - 1 for count in counts.values()),
        foreign=sum(count for row, count in counts.items() if row not in may_be),
        unbooked=unbooked,
    )


def check(database_url: str, record: Record) -> Verdict:
    """Read what the store holds of the record's run, and judge it."""
    database = Database(database_url)
    try:
        with database.read() as session:
            streams = list(
                session.scalars(select(StreamRow).where(StreamRow.run_id == record.run_id))
            )
            rows_by_stream = {stream.id: _rows(session, stream) for stream in streams}
            unbooked = [
                f"stream {stream.device} of rank {stream.rank} says {stream.samples} samples, and has {len(rows_by_stream[stream.id])}"
                for stream in streams
                if stream.samples != len(rows_by_stream[stream.id])
            ]
            unbooked += _wrong_books(session, record)
    finally:
        database.close()
    return judge(record, (row for rows in rows_by_stream.values() for row in rows), tuple(unbooked))


def samples_of(database_url: str, run_id: str) -> int:
    """Count the samples of a run by its counters and by its chunks, which must agree."""
    database = Database(database_url)
    try:
        with database.read() as session:
            streams = list(session.scalars(select(StreamRow).where(StreamRow.run_id == run_id)))
            samples = sum(
                len(columns["step"])
                for stream in streams
                for _, columns in read_samples(session, stream.id)
            )
            assert samples == sum(stream.samples for stream in streams)
    finally:
        database.close()
    return samples


def _rows(session: Session, stream: StreamRow) -> list[Row]:
    return [
        row
        for _, columns in read_samples(session, stream.id)
        for row in stored_rows(stream.rank, stream.device, columns)
    ]


def _wrong_books(session: Session, record: Record) -> list[str]:
    """Check that each event of a delivered run is stored once, and that no sequence number is
    missing.
    """
    if not record.is_delivered:
        return []
    wrong = []
    query = select(EventRow.rank, EventRow.step).where(EventRow.run_id == record.run_id)
    events = Counter((event.rank, event.step) for event in session.execute(query))
    if events != Counter((rank, seq * ROWS) for rank, seq in record.batches if has_event(seq)):
        wrong.append("the events are not those that were sent, each once")
    ranks = session.execute(
        select(RankRow.rank, RankRow.next_seq).where(RankRow.run_id == record.run_id)
    ).all()
    next_seqs = {rank.rank: rank.next_seq for rank in ranks}
    batches = Counter(rank for rank, _ in record.batches)
    if next_seqs != dict(batches):
        wrong.append(f"the next batches are {next_seqs}, and should be {dict(batches)}")
    return wrong
