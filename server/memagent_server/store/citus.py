"""Citus: the tables that a batch writes are distributed by run, all others stay on the coordinator.

1. All rows of a run are on one node. Citus commits a worker before the coordinator, so a batch that
   wrote to both could be lost in part by a crash in between.
2. Keys contain the run, as Citus requires. Of the foreign keys, those to the run itself remain.
3. Alerts, their outbox and the evaluation's marks are decided together: they are the coordinator's.
4. A deletion concerns both, and commits in two phases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Table, bindparam, literal_column, select, text
from sqlalchemy.orm import Session

from memagent_server.store.errors import SchemaError
from memagent_server.store.models import (
    Base,
    BatchRow,
    ChunkRow,
    ConsoleRow,
    DroppedRow,
    EventRow,
    ForecastRow,
    PredictionRow,
    RankRow,
    RollupRow,
    RunRow,
    RunTagRow,
    SnapshotRow,
    StreamRow,
)

_RUNS = RunRow.__tablename__
_OF_RUNS: tuple[type[Base], ...] = (
    RunTagRow,
    RankRow,
    StreamRow,
    BatchRow,
    DroppedRow,
    ChunkRow,
    RollupRow,
    EventRow,
    ForecastRow,
    PredictionRow,
    SnapshotRow,
    ConsoleRow,
)
RUN_COLUMNS = {_RUNS: "id", **{model.__tablename__: "run_id" for model in _OF_RUNS}}
"""The column of each distributed table that names its run."""

_HAS_CITUS = text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
_LAYOUT = text(
    "SELECT logicalrelid::text AS logicalrelid, colocationid FROM pg_dist_partition "
    "WHERE logicalrelid::text IN :names ORDER BY 1"
).bindparams(bindparam("names", expanding=True))
_FOREIGN_KEYS = text(
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), "
    "confrelid = 'runs'::regclass AND conrelid::regclass::text IN :names FROM pg_constraint "
    "WHERE contype = 'f' AND (conrelid::regclass::text IN :names "
    "OR confrelid::regclass::text IN :names)"
).bindparams(bindparam("names", expanding=True))
_PRIMARY_KEY = text(
    "SELECT conname FROM pg_constraint WHERE contype = 'p' AND conrelid = CAST(:name AS regclass)"
)
_TOUCH_ALL_NODES = text("DELETE FROM dropped_samples WHERE run_id || '' = :run_id")
_INFO_KEY = "memagent_is_distributed"


def is_distributed(session: Session) -> bool:
    """Return True if Citus distributes the tables. Asks once per connection to the database."""
    connection = session.connection()
    if _INFO_KEY not in connection.info:
        connection.info[_INFO_KEY] = bool(_layout(connection))
    return bool(connection.info[_INFO_KEY])


def check_layout(connection: Connection) -> bool:
    """Return True if the tables are distributed, False if they are on one node.

    Raises SchemaError for any other layout: a crash could lose acknowledged samples.
    """
    layout = _layout(connection)
    is_by_run = layout.keys() == RUN_COLUMNS.keys() and len(set(layout.values())) == 1
    if not layout or is_by_run:
        return bool(layout)
    raise SchemaError(
        f"Citus distributes {', '.join(layout)} apart from what a batch writes with them, and a "
        "crash could lose acknowledged samples: stop all servers, run SELECT "
        "undistribute_table('NAME') for each of them, then `memagent db distribute`"
    )


def distribute(connection: Connection) -> None:
    """Distribute the tables in the caller's transaction, while no server uses the database.

    Raises SchemaError without Citus, or for tables that are distributed otherwise.
    """
    if connection.dialect.name == "sqlite" or not connection.scalar(_HAS_CITUS):
        raise SchemaError(
            "The database has no Citus: run CREATE EXTENSION citus on all nodes, then "
            "SELECT citus_add_node('HOST', PORT) for each worker"
        )
    if check_layout(connection):
        return
    keys = connection.execute(_FOREIGN_KEYS, {"names": list(RUN_COLUMNS)}).all()
    for table, name, _, _ in keys:
        _run(connection, f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    for table in RUN_COLUMNS:
        _distribute_table(connection, Base.metadata.tables[table])
    for table, name, definition, is_to_run in keys:
        if is_to_run:
            _run(connection, f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")


def groups_to_lock(session: Session, run_ids: Collection[str]) -> list[Collection[str]]:
    """Return the runs that one statement can lock at a time: on Citus, only rows of one node."""
    return [[run_id] for run_id in sorted(run_ids)] if is_distributed(session) else [run_ids]


def begin_two_phases(session: Session, run_id: str) -> None:
    """Make the transaction commit on all nodes or on none, for a run that is about to be deleted.

    Citus does so for a statement that changes rows of several nodes.
    """
    if is_distributed(session):
        session.execute(_TOUCH_ALL_NODES, {"run_id": run_id})


def _layout(connection: Connection) -> Mapping[str, int]:
    """Return the group of co-located tables of each distributed table."""
    if connection.dialect.name == "sqlite" or not connection.scalar(_HAS_CITUS):
        return {}
    rows = connection.execute(_LAYOUT, {"names": list(Base.metadata.tables)})
    return {row.logicalrelid: row.colocationid for row in rows}


def _distribute_table(connection: Connection, table: Table) -> None:
    name, column = table.name, RUN_COLUMNS[table.name]
    if table.dialect_options["postgresql"]["partition_by"]:
        # shards take the place of partitions
        old = f"{name}_on_one_node"
        _run(connection, f"ALTER TABLE {name} RENAME TO {old}")
        _run(connection, f"CREATE TABLE {name} (LIKE {old} INCLUDING ALL)")
        _place(connection, name, column)
        columns = [column.name for column in table.columns]
        rows: Any = select(*(literal_column(name) for name in columns)).select_from(text(old))
        connection.execute(table.insert().from_select(columns, rows))
        _run(connection, f"DROP TABLE {old}")
        return
    if column not in table.primary_key.columns:
        # the id first, as rows are found by it, too
        key = connection.scalar(_PRIMARY_KEY, {"name": name})
        _run(connection, f"ALTER TABLE {name} DROP CONSTRAINT {key}")
        _run(connection, f"ALTER TABLE {name} ADD PRIMARY KEY (id, {column})")
    _place(connection, name, column)
    _run(connection, f"SELECT truncate_local_data_after_distributing_table('{name}')")


def _place(connection: Connection, name: str, column: str) -> None:
    near = "none" if name == _RUNS else _RUNS
    _run(
        connection,
        f"SELECT create_distributed_table('{name}', '{column}', colocate_with => '{near}')",
    )


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)
