"""Chunks count samples and know their run, rollups, what a run still has; on PostgreSQL chunks and rollups are partitioned by run.

`chunks.seq` was the number of a chunk and becomes the place of its last sample, so that chunks can be cut anew. The rows are moved into
a new table: in 16 hash partitions on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from memagent.wire.columns import pack
from memagent_server.store.buckets import unpack_buckets
from memagent_server.store.chunks import column_stats as stats_of
from memagent_server.store.chunks import pack_stats
from memagent_server.store.packing import kinds_of, unseal

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

PARTITIONS = 16
_KEEPS_MORE = sa.text("keeps <> 'record'")


def upgrade() -> None:
    op.execute("ALTER TABLE chunks RENAME TO chunks_before")
    _create_bulk("chunks", *_chunk_columns(), keys=["stream_id", "seq", "run_id"])
    _create_bulk("rollups", *_rollup_columns(), keys=["stream_id", "level", "block", "run_id"])
    op.execute(
        "INSERT INTO chunks (run_id, stream_id, seq, first_step, last_step, rows, received_at, stats, packed) "
        "SELECT s.run_id, c.stream_id, sum(c.rows) OVER (PARTITION BY c.stream_id ORDER BY c.seq) - 1, "
        "c.first_step, c.last_step, c.rows, c.received_at, c.stats, c.packed "
        "FROM chunks_before c JOIN streams s ON s.id = c.stream_id"
    )
    op.execute(
        "UPDATE watches SET seq = coalesce("
        "(SELECT sum(c.rows) FROM chunks_before c WHERE c.stream_id = watches.stream_id AND c.seq <= watches.seq), 0) - 1"
    )
    op.drop_table("chunks_before")
    op.add_column(
        "streams", sa.Column("compacted_seq", sa.BigInteger(), server_default="-1", nullable=False)
    )
    op.add_column(
        "streams", sa.Column("rolled_seq", sa.BigInteger(), server_default="-1", nullable=False)
    )
    op.add_column(
        "streams",
        sa.Column("is_compacted", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.create_index(
        "ix_streams_uncompacted",
        "streams",
        ["id"],
        sqlite_where=sa.text("is_compacted = 0"),
        postgresql_where=sa.text("NOT is_compacted"),
    )
    op.add_column(
        "runs", sa.Column("keeps", sa.String(20), server_default="samples", nullable=False)
    )
    op.create_index(
        "ix_runs_archived_project_status",
        "runs",
        ["is_archived", "project", "status", "created_at", "id"],
    )
    op.create_index(
        "ix_runs_keeps",
        "runs",
        ["keeps", "finished_at"],
        sqlite_where=_KEEPS_MORE,
        postgresql_where=_KEEPS_MORE,
    )


def downgrade() -> None:
    op.drop_index("ix_runs_keeps", "runs")
    op.drop_index("ix_runs_archived_project_status", "runs")
    op.drop_column("runs", "keeps")
    op.drop_index("ix_streams_uncompacted", "streams")
    for name in ("is_compacted", "rolled_seq", "compacted_seq"):
        op.drop_column("streams", name)
    op.execute("ALTER TABLE chunks RENAME TO chunks_cut")
    op.create_table(
        "chunks",
        sa.Column(
            "stream_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        *(column for column in _chunk_columns() if column.name not in ("stream_id", "run_id")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("stream_id", "seq"),
    )
    op.create_index("ix_chunks_received", "chunks", ["received_at"])
    op.create_index("ix_chunks_stream_step", "chunks", ["stream_id", "first_step"])
    bind = op.get_bind()
    for run_id, stream_id in bind.execute(sa.text("SELECT run_id, id FROM streams")).all():
        _number_chunks(bind, {"run_id": run_id, "stream_id": stream_id})
    op.drop_table("chunks_cut")
    op.drop_table("rollups")


def _number_chunks(bind: sa.Connection, stream: dict[str, object]) -> None:
    """Give a stream's chunks their numbers back, as they were packed before; what only rollups know comes as chunks without samples."""
    rows = {row["seq"]: row for row in _rolled_up(bind, stream)}
    kept = bind.execute(
        sa.text("SELECT seq FROM chunks_cut WHERE run_id = :run_id AND stream_id = :stream_id"),
        stream,
    )
    places = sorted({*rows, *kept.scalars()})
    one = sa.text(
        "SELECT * FROM chunks_cut WHERE run_id = :run_id AND stream_id = :stream_id AND seq = :seq"
    )
    for number, place in enumerate(places):
        found = bind.execute(one, {**stream, "seq": place}).mappings().first()
        row = rows[place] if found is None else _unsealed(found)
        bind.execute(
            sa.text(
                "INSERT INTO chunks (stream_id, seq, first_step, last_step, rows, received_at, stats, packed) "
                "VALUES (:stream_id, :seq, :first_step, :last_step, :rows, :received_at, :stats, :packed)"
            ),
            {**row, **stream, "seq": number},
        )
    mark = bind.scalar(sa.text("SELECT seq FROM watches WHERE stream_id = :stream_id"), stream)
    numbers = {
        **stream,
        "mark": sum(place <= (mark or 0) for place in places) - 1,
        "chunks": len(places),
    }
    bind.execute(sa.text("UPDATE watches SET seq = :mark WHERE stream_id = :stream_id"), numbers)
    bind.execute(sa.text("UPDATE streams SET chunks = :chunks WHERE id = :stream_id"), numbers)


def _rolled_up(bind: sa.Connection, stream: dict[str, object]) -> Iterator[dict[str, Any]]:
    """The buckets of level 0 as chunks that have no samples."""
    query = sa.text(
        "SELECT packed FROM rollups WHERE run_id = :run_id AND stream_id = :stream_id AND level = 0 ORDER BY block"
    )
    for packed in bind.execute(query, stream).scalars():
        for seq, rows, stats in unpack_buckets(packed).each():
            first, last, _ = stats["step"]
            yield {
                "seq": seq,
                "rows": rows,
                "first_step": first,
                "last_step": last,
                "received_at": stats.get("time_s", [None] * 3)[2] or 0.0,
                "stats": pack_stats(stats),
                "packed": b"",
            }


def _unsealed(row: Mapping[str, Any]) -> dict[str, Any]:
    if not row["packed"]:
        return dict(row)
    columns = unseal(row["packed"])
    packed = pack(columns, kind_of=kinds_of(row["packed"]).__getitem__)
    return {**row, "packed": packed, "stats": pack_stats(stats_of(columns))}


def _chunk_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("received_at", sa.Float(53), nullable=False),
        sa.Column("stats", sa.LargeBinary(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
    ]


def _rollup_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("buckets", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
    ]


def _create_bulk(name: str, *columns: sa.Column[object], keys: list[str]) -> None:
    """A table that grows with the samples: one on SQLite, partitions on PostgreSQL."""
    is_partitioned = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        name,
        *columns,
        sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}"),
        postgresql_partition_by="HASH (run_id)" if is_partitioned else None,
    )
    for number in range(PARTITIONS if is_partitioned else 0):
        op.execute(
            f"CREATE TABLE {name}_{number:02d} PARTITION OF {name} "
            f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
        )
