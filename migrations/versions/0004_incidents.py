"""Incidents, rules by project, feedback, and how far the alerts of a stream have been decided."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=False),
        sa.Column("cause", sa.String(length=40), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("severity", sa.String(length=20), nullable=False),
        sa.Column("opened_at", sa.Float(precision=53), nullable=False),
        sa.Column("fired_at", sa.Float(precision=53), nullable=True),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("closed_at", sa.Float(precision=53), nullable=True),
        sa.Column("acked_at", sa.Float(precision=53), nullable=True),
        sa.Column("acked_by", sa.String(length=200), nullable=True),
        sa.Column("snoozed_until", sa.Float(precision=53), nullable=True),
        sa.Column("false_alarm_at", sa.Float(precision=53), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_incidents_run", "incidents", ["run_id", "id"])
    op.create_index("ix_incidents_state", "incidents", ["state", "id"])
    op.create_table(
        "rules",
        sa.Column("project", sa.String(length=200), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=False),
        sa.Column("is_on", sa.Boolean(), nullable=False),
        sa.Column("tells", sa.String(length=20), nullable=False),
        sa.Column("thresholds", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_by", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("project", "rule"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("by", sa.String(length=200), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("incident_id", _ID, nullable=True),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("project", sa.String(length=200), nullable=False),
        sa.Column("rule", sa.String(length=40), nullable=False),
        sa.Column("cause", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_feedback_incident", "feedback", ["incident_id"])
    op.create_index("ix_feedback_project", "feedback", ["project", "id"])
    op.create_table(
        "watches",
        sa.Column("stream_id", _ID, autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("states", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("stream_id"),
    )
    # written out: with a batch operation SQLite would drop the tables to copy them, and cascade into what refers to them
    kind = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    for table in ("alerts", "notifications"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN incident_id {kind} REFERENCES incidents (id)")
    _fold_what_is_there()
    op.create_index("ix_alerts_incident", "alerts", ["incident_id"])
    op.create_index("ix_notifications_incident", "notifications", ["incident_id", "channel", "id"])


def _fold_what_is_there() -> None:
    """Each alert from before becomes an incident of its own, under its own id."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    cause = "json_extract(data, '$.cause')" if is_sqlite else "data ->> 'cause'"
    fired_at = "CASE WHEN state NOT IN ('pending', 'ok') THEN opened_at END"
    op.execute(
        "INSERT INTO incidents (id, run_id, rule, cause, state, severity, opened_at, fired_at, updated_at, closed_at) "  # noqa: S608
        f"SELECT id, run_id, rule, {cause}, state, severity, opened_at, {fired_at}, updated_at, closed_at FROM alerts"
    )
    op.execute("UPDATE alerts SET incident_id = id")
    op.execute("UPDATE notifications SET incident_id = alert_id")
    if not is_sqlite:
        op.execute(
            "SELECT setval(pg_get_serial_sequence('incidents', 'id'), (SELECT max(id) FROM incidents))"
        )


def downgrade() -> None:
    op.drop_index("ix_notifications_incident", table_name="notifications")
    op.drop_index("ix_alerts_incident", table_name="alerts")
    for table in ("notifications", "alerts"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN incident_id")
    for table in ("watches", "feedback", "rules", "incidents"):
        op.drop_table(table)
