"""Runs have the time of their newest change, and deletions are kept a while, by which the table of runs in memory
is kept up to date; lists of runs are saved as views.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("changed_at", sa.Float(53), nullable=False, server_default="0"))
    op.create_index(
        "ix_runs_changed", "runs", ["changed_at", "id", "project", "status", "is_archived"]
    )
    op.create_table(
        "run_deletions",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("deleted_at", sa.Float(53), nullable=False),
    )
    op.create_index("ix_run_deletions_deleted", "run_deletions", ["deleted_at"])
    op.create_table(
        "run_views",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("project", sa.String(200), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("query", sa.JSON(), nullable=False),
        sa.Column("saved_at", sa.Float(53), nullable=False),
        sa.Column("saved_by", sa.String(200), nullable=True),
        sa.UniqueConstraint("project", "name", name="uq_run_views_project_name"),
    )


def downgrade() -> None:
    op.drop_table("run_views")
    op.drop_index("ix_run_deletions_deleted", table_name="run_deletions")
    op.drop_table("run_deletions")
    op.drop_index("ix_runs_changed", table_name="runs")
    op.drop_column("runs", "changed_at")
