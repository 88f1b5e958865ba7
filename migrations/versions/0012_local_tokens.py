"""Tokens that a server on loopback creates by itself have a mark; their names were one before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("is_local", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    tokens = sa.table(
        "tokens",
        sa.column("name", sa.String),
        sa.column("scope", sa.String),
        sa.column("is_local", sa.Boolean),
    )
    names = sa.literal("local@%:% ") + tokens.c.scope
    op.execute(tokens.update().where(tokens.c.name.like(names)).values(is_local=True))


def downgrade() -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_column("is_local")
