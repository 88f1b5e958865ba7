"""A snapshot may come with torch's own page of it, for download."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("snapshots") as table:
        table.add_column(
            sa.Column("has_viewer", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        table.add_column(sa.Column("viewer", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("snapshots") as table:
        table.drop_column("viewer")
        table.drop_column("has_viewer")
