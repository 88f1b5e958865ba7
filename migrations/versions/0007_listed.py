"""The list of runs: archived runs, tags to filter by, the highest share of a limit, and sparklines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_OLD = {
    "ix_runs_created": ["created_at", "id"],
    "ix_runs_project_created": ["project", "created_at", "id"],
}
_NEW = {
    "ix_runs_archived_created": ["is_archived", "created_at", "id"],
    "ix_runs_archived_project": ["is_archived", "project", "created_at", "id"],
    "ix_runs_archived_status": ["is_archived", "status", "created_at", "id"],
    "ix_runs_archived_name": ["is_archived", "name", "id"],
    "ix_runs_archived_peak": ["is_archived", "peak_ratio", "id"],
}
_TAGS = {
    "sqlite": "SELECT DISTINCT runs.id, one.value, runs.created_at FROM runs, json_each(runs.tags) AS one",
    "postgresql": "SELECT DISTINCT runs.id, one.value, runs.created_at FROM runs, json_array_elements_text(runs.tags) AS one(value)",
}


def upgrade() -> None:
    # Column by column: a table that SQLite makes anew in a batch takes its children along.
    for name in _OLD:
        op.drop_index(name, "runs")
    op.add_column(
        "runs", sa.Column("are_tags_edited", sa.Boolean(), nullable=False, server_default="0")
    )
    op.add_column(
        "runs", sa.Column("is_archived", sa.Boolean(), nullable=False, server_default="0")
    )
    op.add_column("runs", sa.Column("peak_ratio", sa.Float(53), nullable=False, server_default="0"))
    for name, columns in _NEW.items():
        op.create_index(name, "runs", columns, unique=False)
    op.add_column("streams", sa.Column("sparkline", sa.JSON(), nullable=False, server_default="{}"))
    op.create_table(
        "run_tags",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("tag", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "tag"),
    )
    op.create_index("ix_run_tags_tag", "run_tags", ["tag", "created_at", "run_id"], unique=False)
    _fill()


def downgrade() -> None:
    op.drop_index("ix_run_tags_tag", "run_tags")
    op.drop_table("run_tags")
    op.drop_column("streams", "sparkline")
    for name in _NEW:
        op.drop_index(name, "runs")
    for column in ("peak_ratio", "is_archived", "are_tags_edited"):
        op.drop_column("runs", column)
    for name, columns in _OLD.items():
        op.create_index(name, "runs", columns, unique=False)


def _fill() -> None:
    """What runs from before would have had. Their sparklines begin with their next samples."""
    op.execute(
        f"INSERT INTO run_tags (run_id, tag, created_at) {_TAGS[op.get_bind().dialect.name]}"
    )
    op.execute(
        "UPDATE runs SET peak_ratio = coalesce((SELECT max(1.0 * streams.peak_bytes / streams.limit_bytes) FROM streams "
        "WHERE streams.run_id = runs.id AND streams.limit_bytes > 0), 0)"
    )
