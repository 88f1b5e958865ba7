"""People who log in with an OpenID Connect provider have the rights of their last login."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "people",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("issuer", sa.String(500), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("email", sa.String(320), nullable=True),
        sa.Column("scope", sa.String(20), nullable=True),
        sa.Column("projects", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("session_series", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("last_seen_at", sa.Float(53), nullable=False),
        sa.UniqueConstraint("issuer", "subject", name="uq_people_issuer_subject"),
    )


def downgrade() -> None:
    op.drop_table("people")
