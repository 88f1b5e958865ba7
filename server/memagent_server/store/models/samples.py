"""Tables of samples: streams, and the chunks and rollups that hold their samples."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    select,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from memagent_server.store.models.base import OF_RUN, Base, Id


class ConsoleRow(Base):
    """Up to `console.BLOCK_LINES` lines that a rank has printed, by the number of the first.

    `text` is searched. `marks` is JSON: [number, time, step, is_error] of each of its lines.
    """

    __tablename__ = "console_lines"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int]
    """The newest batch with lines of it."""
    size: Mapped[int]
    text: Mapped[str] = mapped_column(Text)
    marks: Mapped[list[Any]] = mapped_column(default=list)


class StreamRow(Base):
    """The samples of one rank and device in one attempt, or a rank's scalars.

    `latest` holds the newest known value of every column: lists, metrics and alerts read no chunks.
    """

    __tablename__ = "streams"
    __mapper_args__ = OF_RUN
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rank: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int]
    is_current: Mapped[bool] = mapped_column(default=True)
    """True if it belongs to the newest launch of the run; lists, metrics and alerts look at current
    streams only.
    """
    device: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(20))
    """cuda, mps, xpu, host or scalars"""
    name: Mapped[str] = mapped_column(String(200))
    limit_bytes: Mapped[int | None]
    limit_source: Mapped[str | None] = mapped_column(String(200))
    first_step: Mapped[int | None]
    last_step: Mapped[int | None]
    samples: Mapped[int] = mapped_column(default=0)
    chunks: Mapped[int] = mapped_column(default=0)
    peak_bytes: Mapped[int | None]
    """Maximum allocated, over all samples."""
    peaks: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Most ever read of the columns that a prediction has a figure for: see
    `streams.PEAK_COLUMNS`.
    """
    sparkline: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """The course of its memory in a few figures, for lists: see `store/sparkline.py`."""
    last_sample_at: Mapped[float | None]
    latest: Mapped[dict[str, Any]] = mapped_column(default=dict)
    compacted_seq: Mapped[int] = mapped_column(default=-1, server_default="-1")
    """The last sample that stands in a chunk of the final cut: see `store/compaction.py`."""
    rolled_seq: Mapped[int] = mapped_column(default=-1, server_default="-1")
    """The last sample that the rollups hold."""
    is_compacted: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether its launch is over and every sample is compacted and rolled up: there is nothing left
    to do.
    """

    __table_args__ = (
        UniqueConstraint(
            "run_id", "rank", "attempt", "device", name="uq_streams_run_rank_attempt_device"
        ),
        Index(
            "ix_streams_uncompacted",
            "id",
            sqlite_where=text("is_compacted = 0"),
            postgresql_where=text("NOT is_compacted"),
        ),
    )


class BatchRow(Base):
    """A stored batch: its key makes a second delivery a no-op."""

    __tablename__ = "batches"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    samples: Mapped[int]
    digest: Mapped[str] = mapped_column(String(32))
    """Of the content, to tell a second delivery from another batch under the same key."""
    received_at: Mapped[float]


class DroppedRow(Base):
    """Samples that a rank had to drop, cumulative by reason."""

    __tablename__ = "dropped_samples"
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int]


class ChunkRow(Base):
    """Consecutive packed samples of a stream. `seq` is the position of the last one in the stream,
    from 0.

    A chunk holds the samples `seq - rows + 1` to `seq`, so a reader keeps its position when chunks
    are
    compacted. `stats` is msgpack of {column: [min, max, last]}, empty once the rollups have them.
    The
    table has no foreign keys, so that it can be partitioned; `runs.delete_run` deletes its rows.
    """

    __tablename__ = "chunks"
    stream_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    first_step: Mapped[int]
    last_step: Mapped[int]
    rows: Mapped[int] = mapped_column(Integer)
    received_at: Mapped[float]
    stats: Mapped[bytes] = mapped_column(LargeBinary)
    packed: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = ({"postgresql_partition_by": "HASH (run_id)"},)


class RollupRow(Base):
    """Minimum, maximum and last of every column: `rollups.BLOCK_BUCKETS` buckets of one level.

    A bucket of level 0 stands for a compacted chunk, one of the next level for two of the level
    below.
    Like chunks, the table has no foreign keys.
    """

    __tablename__ = "rollups"
    stream_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    level: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    block: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    first_step: Mapped[int]
    last_step: Mapped[int]
    buckets: Mapped[int] = mapped_column(Integer)
    packed: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = ({"postgresql_partition_by": "HASH (run_id)"},)


SampleTable = type[ChunkRow] | type[RollupRow]
SAMPLE_TABLES: tuple[SampleTable, ...] = (ChunkRow, RollupRow)


def of_run(bulk: SampleTable, run_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a run's rows: keys start with the stream, partitions with runs."""
    return bulk.run_id == run_id, bulk.stream_id.in_(
        select(StreamRow.id).where(StreamRow.run_id == run_id)
    )
