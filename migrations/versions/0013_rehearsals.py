"""Rehearsals are stored, and found by the fingerprint of their script."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "rehearsals",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("project", sa.String(200), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("script", sa.String(200), nullable=False),
        sa.Column("gpu", sa.String(200), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("user", sa.String(200), nullable=True),
        sa.Column("host", sa.String(200), nullable=True),
        sa.Column("fits", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("prediction", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_rehearsals_fingerprint", "rehearsals", ["fingerprint", "project", "id"])


def downgrade() -> None:
    op.drop_table("rehearsals")
