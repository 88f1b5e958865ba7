"""Routes decide which channels a notification goes to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "routes",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("projects", sa.JSON(), nullable=False),
        sa.Column("users", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("severity", sa.String(20), nullable=False),
        sa.Column("channels", sa.JSON(), nullable=False),
        sa.Column("goes_on", sa.Boolean(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("routes")
