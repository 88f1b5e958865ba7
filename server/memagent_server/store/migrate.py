"""The schema's version: read it, upgrade, downgrade.

Any number of processes may upgrade at once. Each takes a lock first (SQLite's write lock, an
advisory lock on PostgreSQL): the first one migrates, the others find nothing to do. An upgrade is
one transaction, so a kill leaves the old schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from memagent_server.files import resource_dir
from memagent_server.store import citus
from memagent_server.store.engine import Database
from memagent_server.store.errors import DatabaseError, SchemaError

_LOCK_KEY = 0x6D656D6167656E74
"""`memagent` in ASCII: the key of PostgreSQL's advisory lock."""


def upgrade(database: Database, revision: str = "head") -> str:
    """Upgrade the schema to `revision` and return the new revision.

    Raises SchemaError for a database that's newer than this program, or whose tables Citus
    distributes otherwise; DatabaseError if it's unavailable.
    """
    with _short_errors(database), _locked(database) as connection:
        _refuse_newer(_revision(connection))
        citus.check_layout(connection)
        command.upgrade(_config(connection), revision)
        reached = _revision(connection)
    assert reached is not None, "an upgrade leaves a version behind"
    return reached


def distribute(database: Database) -> str:
    """Upgrade the schema, lay the tables out over Citus' nodes and return the revision.

    Raises SchemaError without Citus, DatabaseError if a node is unavailable.
    """
    revision = upgrade(database)
    with _short_errors(database), _locked(database) as connection:
        citus.distribute(connection)
    return revision


def downgrade(database: Database, revision: str) -> None:
    """Downgrade the schema to `revision`; `base` drops everything."""
    with _short_errors(database), _locked(database) as connection:
        _refuse_newer(_revision(connection))
        command.downgrade(_config(connection), revision)


def current(database: Database) -> str | None:
    """Return the schema's revision, None for an empty database. Raises DatabaseError."""
    with _short_errors(database), database.engine.connect() as connection:
        return _revision(connection)


def is_current(database: Database) -> bool:
    """Return True if the schema has this program's version."""
    return current(database) == head()


@cache
def head() -> str:
    """Return the revision that this program needs."""
    newest = _scripts().get_current_head()
    assert newest is not None, "migrations/versions holds at least one revision"
    return newest


@contextmanager
def _short_errors(database: Database) -> Iterator[None]:
    """Raise DatabaseError with the driver's reason in one line, without the password."""
    try:
        yield
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())
        address = database.engine.url.render_as_string(hide_password=True)
        raise DatabaseError(f"The database {address} cannot be used: {reason}") from error


@contextmanager
def _locked(database: Database) -> Iterator[Connection]:
    with (
        database.engine.connect().execution_options(memagent_write=True) as connection,
        connection.begin(),
    ):
        if not database.is_sqlite:
            # xact: released with the transaction, also by a kill
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        yield connection


def _revision(connection: Connection) -> str | None:
    # Alembic's statement is another at each call: probes of /readyz would fill the cache
    connection.execution_options(compiled_cache=None)
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(revision: str | None) -> None:
    if revision is not None and revision not in _revisions():
        raise SchemaError(
            f"The database has schema {revision}, unknown to this memagent (newest: {head()}): "
            "upgrade memagent, or point MEMAGENT_DATABASE_URL to another database"
        )


@cache
def _revisions() -> frozenset[str]:
    return frozenset(script.revision for script in _scripts().walk_revisions())


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(resource_dir("migrations")))


def _config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    # % starts an interpolation in a configuration file
    config.set_main_option("script_location", str(resource_dir("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
