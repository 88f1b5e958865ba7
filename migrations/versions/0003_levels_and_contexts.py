"""Predictions at three levels with an interval each, the most that a stream ever showed, and the contexts that agents measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_predictions = sa.table(
    "predictions",
    sa.column("id", sa.BigInteger),
    sa.column("low_bytes", sa.BigInteger),
    sa.column("high_bytes", sa.BigInteger),
    sa.column("intervals", sa.JSON),
)


def upgrade() -> None:
    with op.batch_alter_table("predictions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("peak_device_bytes", sa.BigInteger(), nullable=True))
        for name in ("intervals", "phases", "terms"):
            batch_op.add_column(sa.Column(name, sa.JSON(), nullable=False, server_default="{}"))
    connection = op.get_bind()
    bounds = sa.select(_predictions.c.id, _predictions.c.low_bytes, _predictions.c.high_bytes)
    for key, low, high in connection.execute(bounds).all():
        if low is not None and high is not None:
            connection.execute(
                _predictions.update()
                .where(_predictions.c.id == key)
                .values(intervals={"allocated": [low, high]})
            )
    with op.batch_alter_table("predictions", schema=None) as batch_op:
        batch_op.drop_column("low_bytes")
        batch_op.drop_column("high_bytes")
    with op.batch_alter_table("streams", schema=None) as batch_op:
        batch_op.add_column(sa.Column("peaks", sa.JSON(), nullable=False, server_default="{}"))
    op.create_table(
        "device_contexts",
        sa.Column("gpu", sa.String(200), nullable=False),
        sa.Column("driver", sa.String(100), nullable=False),
        sa.Column("torch", sa.String(100), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("newest_bytes", sa.BigInteger(), nullable=False),
        sa.Column("low_bytes", sa.BigInteger(), nullable=False),
        sa.Column("high_bytes", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("gpu", "driver", "torch"),
    )


def downgrade() -> None:
    op.drop_table("device_contexts")
    op.execute(
        "ALTER TABLE streams DROP COLUMN peaks"
    )  # a batch operation would copy the table, and its drop cascade into chunks
    with op.batch_alter_table("predictions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("low_bytes", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("high_bytes", sa.BigInteger(), nullable=True))
    connection = op.get_bind()
    for key, intervals in connection.execute(
        sa.select(_predictions.c.id, _predictions.c.intervals)
    ).all():
        if bounds := (intervals or {}).get("allocated"):
            connection.execute(
                _predictions.update()
                .where(_predictions.c.id == key)
                .values(low_bytes=bounds[0], high_bytes=bounds[1])
            )
    with op.batch_alter_table("predictions", schema=None) as batch_op:
        for name in ("terms", "phases", "intervals", "peak_device_bytes"):
            batch_op.drop_column(name)
