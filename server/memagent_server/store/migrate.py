"""The schema's version: bring it up to date, or say what it is.

Any number of processes may upgrade at once: each takes a lock first (SQLite's write lock, an advisory lock on PostgreSQL), the
first one migrates, the others find nothing left to do. All of an upgrade is one transaction, so a kill leaves the old schema.
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

from memagent_server.resources import resource_dir
from memagent_server.store.engine import Database
from memagent_server.store.errors import DatabaseError, SchemaError

_LOCK_KEY = 0x6D656D6167656E74
"""`memagent` in ASCII: the advisory lock that upgrades take on PostgreSQL."""


def upgrade(database: Database, revision: str = "head") -> str:
    """Bring the schema to `revision` and return it.

    Raises SchemaError for a database that is newer than this program, DatabaseError for one that does not answer.
    """
    with _told_shortly(database), _locked(database) as connection:
        _refuse_newer(_revision(connection))
        command.upgrade(_config(connection), revision)
        reached = _revision(connection)
    assert reached is not None, "an upgrade leaves a version behind"
    return reached


def downgrade(database: Database, revision: str) -> None:
    """Take the schema back to `revision` (`base`: drop everything)."""
    with _told_shortly(database), _locked(database) as connection:
        _refuse_newer(_revision(connection))
        command.downgrade(_config(connection), revision)


def current(database: Database) -> str | None:
    """The schema's revision, or None for an empty database. Raises DatabaseError for one that does not answer."""
    with _told_shortly(database), database.engine.connect() as connection:
        return _revision(connection)


def is_current(database: Database) -> bool:
    """Whether this program and the schema are of the same version."""
    return current(database) == head()


@cache
def head() -> str:
    """The revision that this program needs."""
    newest = _scripts().get_current_head()
    assert newest is not None, "migrations/versions holds at least one revision"
    return newest


@contextmanager
def _told_shortly(database: Database) -> Iterator[None]:
    """The driver's reason in one line, without the address's password."""
    try:
        yield
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())
        raise DatabaseError(
            f"the database {database.engine.url.render_as_string(hide_password=True)} cannot be used: {reason}"
        ) from error


@contextmanager
def _locked(database: Database) -> Iterator[Connection]:
    with (
        database.engine.connect().execution_options(memagent_write=True) as connection,
        connection.begin(),
    ):
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        yield connection


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(revision: str | None) -> None:
    if revision is not None and revision not in _known():
        raise SchemaError(
            f"the database has schema {revision}, which this memagent does not know (its newest is {head()}): "
            "upgrade memagent, or point MEMAGENT_DATABASE_URL to another database"
        )


@cache
def _known() -> frozenset[str]:
    return frozenset(script.revision for script in _scripts().walk_revisions())


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(resource_dir("migrations")))


def _config(connection: Connection) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(resource_dir("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
