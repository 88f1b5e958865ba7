"""Ranks have their start by their host's clock: GPU-hours of runs that arrive later than they ran.

Ranks of before that were replayed get their run's.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ranks", sa.Column("started_at", sa.Float(53), nullable=True))
    op.execute(
        "UPDATE ranks SET started_at ="
        " (SELECT runs.started_at FROM runs WHERE runs.id = ranks.run_id)"
        " WHERE is_replayed AND is_current"
    )


def downgrade() -> None:
    op.drop_column("ranks", "started_at")
