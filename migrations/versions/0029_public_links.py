"""Public links of runs: pages that are read without a token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "public_links",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("created_by", sa.String(200)),
        sa.Column("expires_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("run_id"),
        sa.UniqueConstraint("id"),
    )


def downgrade() -> None:
    op.drop_table("public_links")
