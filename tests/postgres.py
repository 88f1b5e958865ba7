"""A private PostgreSQL server in a temporary folder, for tests and for the programs under `benchmarks/`.

It listens on a socket in that folder only. PostgreSQL refuses to run as root, so root runs it as `postgres`.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIRST_PORT = 5432
"""Part of the socket's name; no TCP port is opened."""
TIMEOUT_S = 30.0


class PostgresCluster:
    """A running PostgreSQL server. The account `postgres` must be able to reach the parent of `folder`.

    With `primary`, the server is its standby and replicates it until it is promoted.
    """

    template = "memagent_template"

    def __init__(
        self, programs: Path, folder: Path, *options: str, primary: PostgresCluster | None = None
    ) -> None:
        self._programs = programs
        self._options = options
        self.port = FIRST_PORT
        self.folder = folder
        self.folder.mkdir()
        self._data = self.folder / "data"
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        if primary is None:
            how = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
            self._run("initdb", "-D", str(self._data), *how, "--no-sync")
        else:
            there = f"host={primary.folder} port={primary.port} user=postgres"
            self._run(
                "pg_basebackup", "-D", str(self._data), "-d", there, "-R", "-c", "fast", "--no-sync"
            )
        self.start()

    @property
    def socket(self) -> Path:
        """Return the socket that the server listens on."""
        return self.folder / f".s.PGSQL.{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}&port={self.port}"

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The URL of a new database, gone afterwards."""
        name = self.create(template)
        yield self.url(name)
        self.drop(name)

    def create(self, template: str) -> str:
        """A new database; returns its name."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def connected(self, name: str) -> Any:
        """A connection to a database, in no transaction, as a context manager."""
        import psycopg

        address = f"host={self.folder} port={self.port} user=postgres dbname={name}"
        return psycopg.connect(address, autocommit=True)

    def execute(self, statement: str) -> list[Any]:
        """The rows of one statement, in no transaction."""
        with self.connected("postgres") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self, port: int | None = None) -> None:
        """Start it again, where it was or on another port. After a kill that takes until the last of its processes has noticed."""
        self.port = port or self.port
        options = f"-k {self.folder} -p {self.port} -c listen_addresses='' -c fsync=off -c full_page_writes=off"
        for option in ("max_connections=200", *self._options):
            options += f" -c {option}"
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._run(
                    "pg_ctl",
                    "-D",
                    str(self._data),
                    "-w",
                    "-l",
                    str(self.folder / "log"),
                    "-o",
                    options,
                    "start",
                )
            except AssertionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def halt(self, mode: str = "fast") -> None:
        """End it: `smart` waits for its clients, `fast` cuts them off, `immediate` leaves the tidying to the next start."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL to the postmaster: its other processes notice, and leave."""
        os.kill(self.pid, signal.SIGKILL)

    def promote(self) -> None:
        """Make a standby a primary of its own."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "promote")

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def is_running(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except (OSError, ValueError):
            return False
        return True

    def stop(self) -> None:
        """End it for good, and leave nothing behind."""
        if self.is_running:
            self.halt("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def make_template(self) -> None:
        """A migrated, empty database of the name `template`."""
        from memagent_server.store import migrate
        from memagent_server.store.engine import Database

        self.execute(f"CREATE DATABASE {self.template} TEMPLATE template0")
        database = Database(self.url(self.template))
        migrate.upgrade(database)
        database.close()

    def _run(self, program: str, *arguments: str) -> None:
        done = _as_postgres(self.folder, self._programs / program, *arguments)
        assert done.returncode == 0, f"{program} failed: {done.stderr}"


@contextmanager
def temporary_cluster(programs: Path) -> Iterator[PostgresCluster]:
    """One that is gone afterwards; those whose session was killed, which go on running, are ended first."""
    with cluster_folder(programs, "memagent-pg-") as folder:
        cluster = PostgresCluster(programs, folder / "cluster")
        try:
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def cluster_folder(programs: Path, prefix: str) -> Iterator[Path]:
    """A folder for servers' folders; servers in abandoned ones are ended."""
    from memagent_server import files

    def end(folder: Path) -> None:
        for data in folder.glob("*/data"):
            stop = ("-D", str(data), "-m", "immediate", "-w", "stop")
            _as_postgres(folder, programs / "pg_ctl", *stop)

    with files.folder(prefix, end) as folder:
        folder.chmod(0o755)  # PostgreSQL's account must get through
        yield folder


def _as_postgres(folder: Path, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*become, str(program), *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        check=False,
    )  # fmt: skip


def find_programs() -> Path | None:
    """The folder with the programs of the newest PostgreSQL on this machine."""
    result = shutil.which("initdb")
    if result is not None:
        return Path(result).resolve().parent
    candidates = glob.glob("/usr/lib/postgresql/*/bin/initdb") + glob.glob(
        "/opt/homebrew/opt/postgresql*/bin/initdb"
    )
    newest = max(
        candidates,
        key=lambda path: [int(part) for part in path.split("/") if part.isdigit()],
        default=None,
    )
    return Path(newest).parent if newest else None
