"""Ranks that were uploaded after their process had ended (`memagent sync`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("ranks", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("is_replayed", sa.Boolean(), nullable=False, server_default=sa.false())
        )


def downgrade() -> None:
    with op.batch_alter_table("ranks", schema=None) as batch_op:
        batch_op.drop_column("is_replayed")
