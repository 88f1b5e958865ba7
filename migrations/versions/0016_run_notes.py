"""Runs have notes, and a name that people may change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("notes", sa.Text(), server_default="", nullable=False))
    op.add_column(
        "runs", sa.Column("is_name_edited", sa.Boolean(), server_default=sa.false(), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("runs", "is_name_edited")
    op.drop_column("runs", "notes")
