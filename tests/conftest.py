"""Fixtures for everybody: databases, the application, and a real server in a process of its own.

`database`, `app` and `client` run each test on SQLite and on PostgreSQL; `sqlite_database`, `sqlite_app` and `sqlite_client` are for
tests that have nothing to learn from a second database. Every test gets a fresh, migrated database of its own.

PostgreSQL is a private cluster in a temporary folder, started once a session (once a worker under pytest-xdist). Where its
programs are missing, the tests that need it are skipped and say so; under CI that is a failure.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3

SECRET_KEY = "a secret key for tests only"
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: as many tests run at once as there are processors
START_TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database file; tests get copies of it."""
    from memagent_server.store import migrate
    from memagent_server.store.engine import Database

    path = tmp_path_factory.mktemp("template") / "memagent.db"
    database = Database(f"sqlite:///{path}")
    migrate.upgrade(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """A private PostgreSQL server that holds a migrated database to copy from."""
    cluster = _start_postgres()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A fresh SQLite database with the current schema."""
    path = tmp_path / "memagent.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """A fresh PostgreSQL database with the current schema."""
    with postgres_cluster.database(template=postgres_cluster.template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    with postgres_cluster.database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """The same test on both databases, with the current schema."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """The same test on both databases, without any schema."""
    url: str = request.getfixturevalue("empty_sqlite_url" if request.param == "sqlite" else "empty_postgres_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Any]:
    """A migrated `Database`, SQLite and PostgreSQL."""
    yield from _opened(database_url)


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Any]:
    """A migrated `Database`, SQLite only."""
    yield from _opened(sqlite_url)


@pytest.fixture
def make_settings() -> Callable[..., Any]:
    """Settings(**changes) with a secret key for tests."""
    from memagent_server.settings import Settings

    def make(database_url: str, **changes: Any) -> Settings:
        return Settings(database_url=database_url, secret_key=SECRET_KEY, **changes)

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
def start_server(tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Start `memagent serve` processes: start_server(*arguments, environ={}, listen="127.0.0.1:0", data=FOLDER).

    Two servers with the same `data` share a database. All of them are gone when the test is over.
    """
    servers: list[LiveServer] = []

    def start(
        *arguments: str, environ: Mapping[str, str] | None = None, listen: str = "127.0.0.1:0", data: Path | None = None
    ) -> LiveServer:
        server = LiveServer.start(data or tmp_path / "server", listen, arguments, environ or {})
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def live_server(start_server: Callable[..., LiveServer]) -> LiveServer:
    """A real server with its worker, in processes of their own, over a SQLite database of its own."""
    return start_server()


@dataclass(frozen=True)
class Answer:
    """What a live server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LiveServer:
    """A `memagent serve` process, leader of its own process group."""

    def __init__(self, process: subprocess.Popen[str], url: str, data: Path) -> None:
        self.process, self.url, self.data = process, url, data
        self._pool = urllib3.PoolManager(retries=False)

    @classmethod
    def start(cls, data: Path, listen: str, arguments: tuple[str, ...], environ: Mapping[str, str]) -> LiveServer:
        data.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")}
        own = {
            "XDG_DATA_HOME": str(data),
            "MEMAGENT_SECRET_KEY": SECRET_KEY,
            "MEMAGENT_DATABASE_URL": f"sqlite:///{data}/memagent.db",
        }
        with (data / "stderr.log").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "memagent", "serve", "--listen", listen, *arguments],
                env={**inherited, **own, **environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return cls(process, _address(process, data), data)

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.data}/memagent.db"

    @property
    def errors(self) -> str:
        """What the server has written to stderr."""
        return (self.data / "stderr.log").read_text()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: bytes | dict[str, Any] | list[Any], **headers: str) -> Answer:
        """Post bytes as they are, or anything else as JSON. Headers: `content_type="..."`."""
        if isinstance(body, bytes):
            return self.request("POST", path, body, {"content_type": "application/msgpack", **headers})
        return self.request("POST", path, json.dumps(body).encode(), {"content_type": "application/json", **headers})

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        response = self._pool.request(method, self.url + path, body=body, headers=named, timeout=30.0, redirect=False)
        return Answer(response.status, response.headers, response.data)

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        return self._gone(timeout_s)

    def kill(self) -> None:
        """SIGKILL to the whole process group: nobody gets to tidy up."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self._gone(30.0)

    def _gone(self, timeout_s: float) -> int:
        self._pool.clear()
        status = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


def _address(process: subprocess.Popen[str], data: Path) -> str:
    """The address from the line that the server prints when it is ready."""
    assert process.stdout is not None
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if "http://" in line:
                return line[line.index("http://") :].strip()
    finally:
        timer.cancel()
    process.stdout.close()
    raise AssertionError(
        f"memagent serve ended with {process.wait()} before it was ready:\n{(data / 'stderr.log').read_text()}"
    )


def _opened(url: str) -> Iterator[Any]:
    from memagent_server.store.engine import Database

    database = Database(url)
    yield database
    database.close()


class PostgresCluster:
    """PostgreSQL on a socket in a temporary folder. It refuses to run as root, so root becomes `postgres` for it."""

    template = "memagent_template"

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="memagent-pg-"))
        self._data = self._folder / "data"
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        options = (
            f"-k {self._folder} -c listen_addresses='' -c fsync=off -c full_page_writes=off -c max_connections=200"
        )
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self._folder / "log"), "-o", options, "start")
        self._make_template()

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def database(self, template: str = "template0") -> Any:
        return _FreshDatabase(self, template)

    def execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(f"host={self._folder} user=postgres dbname=postgres", autocommit=True) as connection:
            connection.execute(statement)

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_template(self) -> None:
        from memagent_server.store import migrate
        from memagent_server.store.engine import Database

        self.execute(f"CREATE DATABASE {self.template} TEMPLATE template0")
        database = Database(self.url(self.template))
        migrate.upgrade(database)
        database.close()

    def _run(self, program: str, *arguments: str) -> None:
        become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*become, str(self._programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == 0, f"{program} failed: {done.stderr}"


class _FreshDatabase:
    def __init__(self, cluster: PostgresCluster, template: str) -> None:
        self._cluster, self._template = cluster, template
        self._name = f"test_{uuid.uuid4().hex}"

    def __enter__(self) -> str:
        self._cluster.execute(f"CREATE DATABASE {self._name} TEMPLATE {self._template}")
        return self._cluster.url(self._name)

    def __exit__(self, *_: object) -> None:
        self._cluster.execute(f"DROP DATABASE {self._name} WITH (FORCE)")


def _start_postgres() -> PostgresCluster:
    programs = _postgres_programs()
    if programs is None:
        reason = "PostgreSQL's initdb is neither on PATH nor under /usr/lib/postgresql: install postgresql"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return PostgresCluster(programs)


def _postgres_programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    candidates = glob.glob("/usr/lib/postgresql/*/bin/initdb") + glob.glob("/opt/homebrew/opt/postgresql*/bin/initdb")
    newest = max(candidates, key=lambda path: [int(part) for part in path.split("/") if part.isdigit()], default=None)
    return Path(newest).parent if newest else None
