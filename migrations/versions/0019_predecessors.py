"""Runs have the hash of their program, by which a rerun finds the run before it; forecasts quote it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_IS_KNOWN = sa.text("program IS NOT NULL")


def upgrade() -> None:
    op.add_column("runs", sa.Column("program", sa.String(32), nullable=True))
    op.add_column("forecasts", sa.Column("predecessor", sa.Text(), nullable=True))
    op.create_index(
        "ix_runs_program",
        "runs",
        ["program", "project", "created_at"],
        sqlite_where=_IS_KNOWN,
        postgresql_where=_IS_KNOWN,
    )


def downgrade() -> None:
    op.drop_index("ix_runs_program", table_name="runs")
    op.drop_column("forecasts", "predecessor")
    op.drop_column("runs", "program")
