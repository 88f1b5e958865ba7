"""The audit log has the values before and after a change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("changes", sa.Column("values", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("changes", "values")
