"""Events that the worker hasn't made alerts of yet are marked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "events", sa.Column("is_pending", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.create_index(
        "ix_events_pending",
        "events",
        ["run_id", "id"],
        sqlite_where=sa.text("is_pending"),
        postgresql_where=sa.text("is_pending"),
    )


def downgrade() -> None:
    op.drop_index("ix_events_pending", "events")
    op.drop_column("events", "is_pending")
