"""The connection to the database: SQLite by default, PostgreSQL for teams.

Doors: `read()` for questions and `write()` for changes, each one transaction with a session; for what each request does, `ask()` and
`together()`, small questions and small changes that come in crowds.
On SQLite a write begins with BEGIN IMMEDIATE: a deferred transaction that reads first and writes later fails with "database is locked"
in spite of any busy timeout when another writer was quicker. WAL lets readers go on meanwhile; synchronous=NORMAL loses nothing when the
process is killed. Writers take turns (`turns`), crowds share a transaction (`writer`), and the log is moved by a thread (`checkpoints`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, TypeVar

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session, sessionmaker

from memagent.errors import SettingError
from memagent_server.store.errors import BROKEN_DISK, READ_ONLY, trouble_of
from memagent_server.store.group_commit import GroupWriter, Work
from memagent_server.store.project_scope import ProjectSession, limited_info
from memagent_server.store.sqlite.wal_checkpoint import BACKSTOP_PAGES, LOG_BYTES, WalCheckpointer
from memagent_server.store.sqlite.write_lock import WriteLock

BUSY_TIMEOUT_S = 8
"""With half of it for the turn, less than an agent waits for an answer."""
_LASTING = (READ_ONLY, BROKEN_DISK)
"""Connections that say so may do so for ever: SQLite opened its files while their disk was read-only, PostgreSQL's primary became a
replica. None that is idle is kept, as new ones may be able to write. The pool itself stays: what is in use now comes back to it, and
SQLite's view of its files is as writable as that of the oldest connection of the process."""
_POSTGRESQL = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 11_000,
}
"""A PostgreSQL whose machine is gone says nothing at all: notice within seconds, where the system's defaults take two hours. What the
address says itself counts more. https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS"""
_OF_SEVERAL_HOSTS = {"target_session_attrs": "read-write"}
"""Where several are named, one is the primary and the others stand by: see docs/scaling.md."""

T = TypeVar("T")


_SNAPSHOT = "REPEATABLE READ"
"""All statements of a transaction see the same, as they do on SQLite; by itself PostgreSQL shows each what has been committed by then."""


class Database:
    """One database, shared by all threads of a process. Sessions are SQLAlchemy's; close() gives the pool back.

    Raises SettingError for an address that is none, or one that needs a driver which is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _create(url)
        self._sessions: sessionmaker[Any] = sessionmaker(self.engine, expire_on_commit=False)
        self._snapshots = (
            self.engine
            if self.is_sqlite
            else self.engine.execution_options(isolation_level=_SNAPSHOT)
        )
        self._writing = self.engine.execution_options(memagent_write=True)
        self._turns: WriteLock | None = None
        self._checkpoints: WalCheckpointer | None = None
        self._writer = GroupWriter(self._begin)
        if self.is_sqlite and self.engine.url.database:
            self._turns = WriteLock(self.engine.url.database, BUSY_TIMEOUT_S / 2)
            self._checkpoints = WalCheckpointer(self.engine, self.engine.url.database, self._turns)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def is_limited(self) -> bool:
        """Whether its sessions see the runs of some projects only."""
        return issubclass(self._sessions.class_, ProjectSession)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for questions: all its answers are of one moment. What it changes is rolled back."""
        with self._sessions(bind=self._snapshots) as session:
            yield session

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection for prepared questions: no session and, on SQLite, no transaction. It knows no limits."""
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits on success and rolls back on an exception; on SQLite it holds the write lock throughout."""
        with self._change(), self._sessions() as session:
            session.connection(execution_options={"memagent_write": True})
            try:
                yield session
                session.commit()
            except BaseException:
                session.rollback()
                raise

    def write_grouped(self, work: Work[T]) -> T:
        """What `work` returns, done in a transaction and committed; on SQLite in one with others' work: see `writer`.

        `work` must bear being done twice. Raises what it raises, what the database does, or BusyError.
        """
        with (
            self._forgetting_what_lasts()
        ):  # in a group, it may be a piece that fails and not the transaction
            if self.is_sqlite:
                return self._writer.run(work)
            with self._begin() as connection:
                return work(connection)

    def limited_to(self, projects: tuple[str, ...]) -> Database:
        """The same database as one who may see the runs of these projects only: see `store.limits`."""
        view = copy(self)
        view._sessions = sessionmaker(
            self.engine, class_=ProjectSession, info=limited_info(projects), expire_on_commit=False
        )
        return view

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        self.engine.dispose()
        if self._turns is not None:
            self._turns.close()

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        with self._change(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _change(self) -> Iterator[None]:
        with (
            self._forgetting_what_lasts(),
            nullcontext() if self._turns is None else self._turns.mine(),
        ):
            yield
        if self._checkpoints is not None:
            self._checkpoints.after_write()

    @contextmanager
    def _forgetting_what_lasts(self) -> Iterator[None]:
        """On trouble that stays with a connection, keep none that is idle."""
        try:
            yield
        except BaseException as error:
            if trouble_of(error) in _LASTING:
                self.engine.pool.dispose()
            raise


def _create(url: str) -> Engine:
    options: dict[str, Any] = {
        "json_serializer": _to_json,
        "json_deserializer": msgspec.json.decode,
        "hide_parameters": True,  # errors are logged, and what people wrote does not belong there
    }
    try:
        if url.startswith("sqlite"):
            engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, **options)
            event.listen(engine, "connect", _configure_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            engine = create_engine(
                url, pool_pre_ping=True, connect_args=_unless_given(url), **options
            )
    except (ArgumentError, ValueError) as error:
        raise SettingError(f"MEMAGENT_DATABASE_URL is no database's address: {error}") from error
    except ModuleNotFoundError as error:
        raise SettingError(
            f"this database needs the package {error.name}: pip install 'memagent[postgres]'"
        ) from error
    return engine


def _unless_given(url: str) -> dict[str, Any]:
    given = make_url(url)
    wanted = {**_POSTGRESQL, **(_OF_SEVERAL_HOSTS if _names_several_hosts(given) else {})}
    return {name: value for name, value in wanted.items() if name not in given.query}


def _names_several_hosts(url: URL) -> bool:
    host = url.query.get("host", url.host or "")
    return "," in host if isinstance(host, str) else len(host) > 1


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 must not send BEGIN by itself: _begin_sqlite does
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_S * 1000}",
        f"wal_autocheckpoint={BACKSTOP_PAGES}",
        f"journal_size_limit={2 * LOG_BYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("memagent_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN DEFERRED")


def _to_json(value: Any) -> str:
    """Readable UTF-8, so that people's words are found by a search; NaN becomes null, which PostgreSQL would refuse."""
    return msgspec.json.encode(value).decode()
