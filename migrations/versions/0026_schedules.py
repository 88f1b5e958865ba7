"""Channels have quiet hours and digests; notifications can be held until a time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "channel_schedules",
        sa.Column("channel", sa.String(40), primary_key=True),
        sa.Column("time_zone", sa.String(60), nullable=False),
        sa.Column("quiet_from", sa.String(5), nullable=True),
        sa.Column("quiet_to", sa.String(5), nullable=True),
        sa.Column("digest_at", sa.String(5), nullable=False),
        sa.Column("daily", sa.Boolean(), nullable=False),
        sa.Column("waste_day", sa.String(10), nullable=True),
        sa.Column("projects", sa.JSON(), nullable=False),
    )
    op.create_table(
        "digests",
        sa.Column("channel", sa.String(40), primary_key=True),
        sa.Column("kind", sa.String(10), primary_key=True),
        sa.Column("done_until", sa.Float(53), nullable=False),
        sa.Column("sent_at", sa.Float(53), nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.Float(53), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
    )
    op.add_column("notifications", sa.Column("held_until", sa.Float(53), nullable=True))


def downgrade() -> None:
    op.drop_column("notifications", "held_until")
    op.drop_table("digests")
    op.drop_table("channel_schedules")
