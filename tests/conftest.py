"""Shared fixtures: databases, the application, and a real server process.

`database`, `app` and `client` run each test on SQLite and on PostgreSQL. `sqlite_database`,
`sqlite_app` and `sqlite_client` are for tests that gain nothing from a second database. Every test
gets a migrated database of its own.

PostgreSQL is a private cluster in a temporary folder, started once per session (once per worker
under pytest-xdist). If its programs are missing, the tests that need it are skipped with that
reason; under CI they fail.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import memory_watch
from tests.database_pool import DatabasePool
from tests.live_server import SECRET_KEY, LiveServer
from tests.postgres import PostgresCluster, find_programs, temporary_cluster
from tests.python_fork import ForkServer

# Set before torch is imported: more tests run in parallel than there are processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        memory_watch.start()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return one worker more than there are processors: tests often wait for other processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # as xdist reads it
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else None


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell has started this in the background; its children would ignore interrupts, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _collect_new_objects_only() -> None:
    """Freeze what is loaded: a full collection takes a second, and hundreds of tests cause one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated, empty database file that tests copy."""
    from memagent_server.store import migrate
    from memagent_server.store.engine import Database

    path = tmp_path_factory.mktemp("template") / "memagent.db"
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """Return the folder of PostgreSQL's programs. Skip the test, or fail under CI, without them."""
    programs = find_programs()
    if programs is None:
        reason = "PostgreSQL's initdb is neither on PATH nor under /usr/lib/postgresql: install postgresql"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return programs


@pytest.fixture(scope="session")
def postgres_cluster(postgres_programs: Path) -> Iterator[PostgresCluster]:
    """Start a private PostgreSQL server with a migrated template database."""
    with temporary_cluster(postgres_programs) as cluster:
        cluster.make_template()
        yield cluster


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A fresh SQLite database with the current schema."""
    path = tmp_path / "memagent.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_pool(postgres_cluster: PostgresCluster) -> DatabasePool:
    return DatabasePool(postgres_cluster)


@pytest.fixture
def postgres_url(postgres_pool: DatabasePool) -> Iterator[str]:
    """Lend an empty PostgreSQL database with the current schema."""
    with postgres_pool.lend() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    with postgres_cluster.database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """Run the test on both databases, with the current schema."""
    url: str = request.getfixturevalue(
        "sqlite_url" if request.param == "sqlite" else "postgres_url"
    )
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """Run the test on both databases, without a schema."""
    url: str = request.getfixturevalue(
        "empty_sqlite_url" if request.param == "sqlite" else "empty_postgres_url"
    )
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Any]:
    """A migrated `Database`, SQLite and PostgreSQL."""
    yield from _opened(database_url)


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Any]:
    """A migrated `Database`, SQLite only."""
    yield from _opened(sqlite_url)


@pytest.fixture(scope="session")
def make_settings() -> Callable[..., Any]:
    """Settings(**changes) with a secret key for tests, open to this machine without tokens."""
    from memagent_server.settings import Settings

    def make(database_url: str, **changes: Any) -> Settings:
        return Settings(
            database_url=database_url, secret_key=SECRET_KEY, **{"is_open": True, **changes}
        )

    return make


@pytest.fixture
def app(database: Any, make_settings: Callable[..., Any]) -> Any:
    """The Flask application over `database`."""
    from memagent_server.app import create_app

    return create_app(make_settings(database.url), database)


@pytest.fixture
def client(app: Any) -> Any:
    return app.test_client()


@pytest.fixture
def sqlite_app(sqlite_database: Any, make_settings: Callable[..., Any]) -> Any:
    """The Flask application over `sqlite_database`."""
    from memagent_server.app import create_app

    return create_app(make_settings(sqlite_database.url), sqlite_database)


@pytest.fixture
def sqlite_client(sqlite_app: Any) -> Any:
    return sqlite_app.test_client()


@pytest.fixture
def start_server(tmp_path: Path, memagent_fork: ForkServer) -> Iterator[Callable[..., LiveServer]]:
    """Return a function that starts `memagent serve` processes.

    start_server(*arguments, environ={}, listen="127.0.0.1:0", data=FOLDER, program=("-m",
    "memagent")). Servers with the same `data` share a database. All of them are killed at the end of the test.
    """
    servers: list[LiveServer] = []

    def start(
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
        data: Path | None = None,
        program: tuple[str, ...] = ("-m", "memagent"),
    ) -> LiveServer:
        folder = data or tmp_path / "server"
        is_forked = program == ("-m", "memagent")
        server = LiveServer.start(
            *(folder, listen, arguments, environ or {}, program),
            memagent_fork if is_forked else None,
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def live_server(start_server: Callable[..., LiveServer]) -> LiveServer:
    """Start a real server and its worker over a new SQLite database."""
    return start_server()


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Start a real server without a worker for the whole session. Each user empties it first."""
    server = LiveServer.start(
        tmp_path_factory.mktemp("pages"), "127.0.0.1:0", ("--role", "web"), {}
    )
    yield server
    server.kill()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Run scripts in processes that have imported torch: fork_server.run("-c", CODE)."""
    python = ForkServer()
    yield python
    python.close()


@pytest.fixture(scope="session")
def memagent_fork() -> Iterator[ForkServer]:
    """Run `-m memagent VERB` in processes that have imported the server but not torch."""
    verbs = ("serve", "sync", "notify", "prune", "dashboards")
    names = ("app", "supervisor", "worker", "store.migrate")
    modules = ("granian", *(f"memagent_server.{name}" for name in names))
    python = ForkServer(*modules, *(f"memagent.cli.{verb}" for verb in verbs))
    yield python
    python.close()


def _opened(url: str) -> Iterator[Any]:
    from memagent_server.store.engine import Database

    database = Database(url)
    _share_compiled_queries(database.engine)
    yield database
    database.close()


_ENGINES: dict[str, Any] = {}


def _share_compiled_queries(engine: Any) -> None:
    """Let the engine use the queries that the first engine of its dialect has compiled.

    Half of what a short test of the server costs is to compile the same queries again.
    """
    if engine.dialect.name not in _ENGINES:
        # the first connection of an engine completes its own dialect, not the one it was given
        engine.connect().close()
        _ENGINES[engine.dialect.name] = engine
    first = _ENGINES[engine.dialect.name]
    engine.dialect = engine.pool._dialect = first.dialect
    engine._compiled_cache = first._compiled_cache


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first: every worker waits for the one that starts last."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
