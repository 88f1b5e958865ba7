"""Projects have rules about columns and scalars."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "column_rules",
        sa.Column("project", sa.String(200), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("column", sa.String(128), nullable=False),
        sa.Column("test", sa.String(20), nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("for_s", sa.Float(53), nullable=False),
        sa.Column("level", sa.String(20), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.Column("updated_by", sa.String(200), nullable=True),
        sa.PrimaryKeyConstraint("project", "name"),
    )


def downgrade() -> None:
    op.drop_table("column_rules")
