"""Workers side by side: who works on what, and what forecasters remember. Ends that nobody has heard of are found by an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_DIED = sa.text("status IN ('oom', 'lost_contact')")
_SHARDS = 64


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.String(200), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("started_at", sa.Float(53), nullable=False),
        sa.Column("seen_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    shards = op.create_table(
        "shards",
        sa.Column("shard", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.String(64), nullable=True),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("shard"),
    )
    op.create_index("ix_shards_worker", "shards", ["worker_id"])
    op.bulk_insert(shards, [{"shard": shard, "worker_id": None} for shard in range(_SHARDS)])
    op.create_table(
        "recollections",
        sa.Column(
            "stream_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("stream_id"),
    )
    op.create_index(
        "ix_runs_died", "runs", ["last_seen_at"], sqlite_where=_DIED, postgresql_where=_DIED
    )


def downgrade() -> None:
    op.drop_index("ix_runs_died", "runs")
    op.drop_table("recollections")
    op.drop_table("shards")
    op.drop_table("workers")
