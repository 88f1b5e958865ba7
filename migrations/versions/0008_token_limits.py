"""Tokens that are limited to projects, and tokens that expire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("projects", sa.JSON(), nullable=False, server_default="[]"))
        batch_op.add_column(sa.Column("expires_at", sa.Float(53), nullable=True))


def downgrade() -> None:
    # What came before knows no limits: a token that has one must not become one that has none.
    op.execute(
        "UPDATE tokens SET revoked_at = created_at "
        "WHERE revoked_at IS NULL AND (expires_at IS NOT NULL OR CAST(projects AS VARCHAR(1000)) <> '[]')"
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_column("expires_at")
        batch_op.drop_column("projects")
