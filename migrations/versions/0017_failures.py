"""Runs have the fingerprint of their failure, and people resolve failures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_FAILED = sa.text("failure IS NOT NULL")


def upgrade() -> None:
    op.add_column("runs", sa.Column("failure", sa.String(16), nullable=True))
    op.add_column("runs", sa.Column("failure_title", sa.Text(), nullable=True))
    op.create_index(
        "ix_runs_failure",
        "runs",
        [
            *("failure", "project", "user", "finished_at", "started_at", "created_at"),
            "failure_title",
        ],
        sqlite_where=_FAILED,
        postgresql_where=_FAILED,
    )
    op.create_table(
        "resolved_failures",
        sa.Column("fingerprint", sa.String(16), nullable=False),
        sa.Column("project", sa.String(200), nullable=False),
        sa.Column("resolved_at", sa.Float(53), nullable=False),
        sa.Column("resolved_by", sa.String(200), nullable=True),
        sa.PrimaryKeyConstraint("fingerprint"),
    )


def downgrade() -> None:
    op.drop_table("resolved_failures")
    op.drop_index("ix_runs_failure", table_name="runs")
    op.drop_column("runs", "failure_title")
    op.drop_column("runs", "failure")
