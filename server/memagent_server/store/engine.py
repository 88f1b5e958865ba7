"""The connection to the database: SQLite by default, PostgreSQL for teams.

`read()` and `write()` give sessions of one transaction each. The frequent requests use `connect()`
and `write_grouped()`: compiled queries, and small writes that share transactions.

On SQLite a write begins with BEGIN IMMEDIATE: a deferred transaction that reads first and writes
later fails with "database is locked", whatever the busy timeout, if another writer was faster. In
WAL mode readers go on meanwhile; synchronous=NORMAL loses nothing when the process is killed.
Writers queue (`sqlite.write_lock`), frequent writes share a transaction (`group_commit`), and a
thread checkpoints the log (`sqlite.wal_checkpoint`).
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, TypeVar

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from memagent.errors import SettingError
from memagent_server.store.errors import BROKEN_DISK, READ_ONLY, problem_of
from memagent_server.store.group_commit import GroupWriter, WriteFunction
from memagent_server.store.project_scope import ProjectSession, scope_info
from memagent_server.store.run_table import RunTable, table_info
from memagent_server.store.sqlite import (
    AUTOCHECKPOINT_PAGES,
    CHECKPOINT_BYTES,
    ConnectionStack,
    WalCheckpointer,
    WriteLock,
)

__all__ = ["BUSY_TIMEOUT_S", "Connection", "Database", "Session"]

IDLE_READERS = 4
"""Connections that stay checked out of SQLite's pool for the tokens of the next requests."""
BUSY_TIMEOUT_S = 8
"""Half of it for the write lock: less than an agent waits for a response."""
_LASTING_PROBLEMS = (READ_ONLY, BROKEN_DISK)
"""Problems that stay with a connection: SQLite opened its files on a read-only disk, or the
primary of PostgreSQL became a replica. Idle connections are closed: new ones may be able to write.
"""
_POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 11_000,
}
"""Notice within seconds that the server's machine is gone; the system's defaults take two hours.
Options in the address take precedence.
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""
_SEVERAL_HOSTS_OPTIONS = {"target_session_attrs": "read-write"}
"""Of several hosts, one is the primary: see docs/scaling.md."""
_SNAPSHOT_ISOLATION = "REPEATABLE READ"
"""All queries of a read see the same moment, as on SQLite."""

T = TypeVar("T")


class Database:
    """One database, shared by all threads of a process.

    Raises SettingError for an invalid address, or one that needs a driver that isn't installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _create_engine(url)
        self._table_info = table_info(RunTable())
        self._sessions: sessionmaker[Any] = sessionmaker(
            self.engine, info=self._table_info, expire_on_commit=False
        )
        self._read_engine = self.engine
        # in SQLite's WAL mode, every transaction reads one snapshot anyway
        if not self.is_sqlite:
            self._read_engine = self.engine.execution_options(isolation_level=_SNAPSHOT_ISOLATION)
        self._write_engine = self.engine.execution_options(memagent_write=True)
        self._write_lock: WriteLock | None = None
        self._checkpointer: WalCheckpointer | None = None
        self._group_writer = GroupWriter(self._begin)
        path = self.engine.url.database
        is_file = self.is_sqlite and bool(path)
        self._readers = ConnectionStack(IDLE_READERS if is_file else 0)
        self._writers = ConnectionStack(1 if is_file else 0)
        if self.is_sqlite and path:
            self._write_lock = WriteLock(path, BUSY_TIMEOUT_S / 2)
            self._checkpointer = WalCheckpointer(self.engine, path, self._write_lock)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def is_limited(self) -> bool:
        """True if its sessions see the runs of some projects only."""
        return issubclass(self._sessions.class_, ProjectSession)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a session whose queries all see one moment. Changes are rolled back."""
        with self._sessions(bind=self._read_engine) as session:
            yield session

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Open a connection for compiled queries, without a project scope.

        On SQLite there is no transaction either.
        """
        with self._readers.lend(self.engine) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Open a session that commits, or rolls back on an exception.

        On SQLite it holds the write lock throughout.
        """
        with self._writing(), self._sessions() as session:
            # the connection begins here, and so with BEGIN IMMEDIATE
            session.connection(execution_options={"memagent_write": True})
            try:
                yield session
                session.commit()
            except BaseException:
                session.rollback()
                raise

    def write_grouped(self, write: WriteFunction[T]) -> T:
        """Return the result of `write` after its commit; on SQLite writes share transactions.

        `write` must tolerate running twice: see `group_commit`. Raises what it or the database
        raises, or BusyError.
        """
        with self._dropping_stale_connections():  # in a group, one job can fail without the others
            if self.is_sqlite:
                return self._group_writer.run(write)
            with self._begin() as connection:
                return write(connection)

    def limited_to(self, projects: tuple[str, ...]) -> Database:
        """Return a view of the database with the runs of these projects only."""
        # shares the engine, the locks and the group writer: there is one of each per file
        view = copy(self)
        info = {**scope_info(projects), **self._table_info}
        view._sessions = sessionmaker(
            self.engine, class_=ProjectSession, info=info, expire_on_commit=False
        )
        return view

    def close(self) -> None:
        """Stop the checkpoint thread and close all connections."""
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._close_idle()
        self.engine.dispose()
        if self._write_lock is not None:
            self._write_lock.close()

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        lent = self._writers.lend(self._write_engine)
        with self._writing(), lent as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[None]:
        lock = nullcontext() if self._write_lock is None else self._write_lock.acquire()
        with self._dropping_stale_connections(), lock:
            yield
        if self._checkpointer is not None:
            self._checkpointer.after_write()

    @contextmanager
    def _dropping_stale_connections(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if problem_of(error) in _LASTING_PROBLEMS:
                # only idle connections: the pool itself stays for those in use
                self._close_idle()
                self.engine.pool.dispose()
            raise

    def _close_idle(self) -> None:
        self._readers.close()
        self._writers.close()


def _create_engine(url: str) -> Engine:
    options: dict[str, Any] = {
        "json_serializer": _to_json,
        "json_deserializer": msgspec.json.decode,
        "hide_parameters": True,  # errors are logged, and must not show users' data
    }
    try:
        if url.startswith("sqlite"):
            connect_args = {"timeout": BUSY_TIMEOUT_S}
            engine = create_engine(url, connect_args=connect_args, max_overflow=16, **options)
            event.listen(engine, "connect", _configure_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            connect_args = _postgresql_options(make_url(url))
            # the ping replaces connections that a restart or a failover has cut
            engine = create_engine(url, pool_pre_ping=True, connect_args=connect_args, **options)
    except (ArgumentError, ValueError) as error:
        raise SettingError(f"MEMAGENT_DATABASE_URL is not a database address: {error}") from error
    except ModuleNotFoundError as error:
        raise SettingError(
            f"This database needs the package {error.name}: pip install 'memagent[postgres]'"
        ) from error
    return engine


def _postgresql_options(url: URL) -> dict[str, Any]:
    host = url.query.get("host", url.host or "")
    has_several_hosts = "," in host if isinstance(host, str) else len(host) > 1
    options = {**_POSTGRESQL_OPTIONS, **(_SEVERAL_HOSTS_OPTIONS if has_several_hosts else {})}
    # connect_args would overrule the address
    return {name: value for name, value in options.items() if name not in url.query}


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # keep sqlite3 from sending BEGIN: _begin_sqlite does
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
    _switch_to_wal(connection)
    for pragma in (
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"wal_autocheckpoint={AUTOCHECKPOINT_PAGES}",
        f"journal_size_limit={2 * CHECKPOINT_BYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the journal of a new database, also where others do so at the same moment.

    SQLite doesn't wait for the busy timeout then: two connections that wait for each other's
    read lock would never end.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up_at:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - no secret  # nosec B311


def _begin_sqlite(connection: Connection) -> None:
    is_write = connection.get_execution_options().get("memagent_write", False)
    statement = "BEGIN IMMEDIATE" if is_write else "BEGIN DEFERRED"
    driver: Any = connection.connection.dbapi_connection
    try:
        driver.execute(statement)  # a twentieth of a batch less than exec_driver_sql
    except sqlite3.Error as error:
        raise DBAPIError.instance(
            statement, None, error, sqlite3.Error, dialect=connection.dialect
        ) from error


def _to_json(value: Any) -> str:
    """Encode as UTF-8, which a search finds; NaN becomes null, as PostgreSQL rejects NaN."""
    return msgspec.json.encode(value).decode()
