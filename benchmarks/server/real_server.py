"""Setting of the measurements: a new database and a real server process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from memagent_server.store import migrate
from memagent_server.store.engine import Database
from tests.postgres import find_programs, temporary_cluster

LOG_SHOWN_BYTES = 4_096
SECRET_KEY = "a secret for benchmarks only"


@contextmanager
def fresh_database(*, postgres: bool = False) -> Iterator[Database]:
    """Create an empty database with the current schema: SQLite, or PostgreSQL in its own server."""
    with _postgres_url() if postgres else _sqlite_url() as url:
        database = Database(url)
        migrate.upgrade(database)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def _sqlite_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="memagent-benchmark-") as folder:
        yield f"sqlite:///{folder}/memagent.db"


@contextmanager
def _postgres_url() -> Iterator[str]:
    programs = find_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL is not installed")
    with temporary_cluster(programs) as cluster, cluster.database() as url:
        yield url


@dataclass(frozen=True)
class Server:
    """A running server of any kind: its address and its processes."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the processor time of all its processes."""
        return sum(
            _cpu_s(process) for process in [self.process, *self.process.children(recursive=True)]
        )

    def resident_bytes(self) -> int:
        """Return the resident memory of all its processes."""
        return sum(
            process.memory_info().rss
            for process in [self.process, *self.process.children(recursive=True)]
        )


@contextmanager
def running_server(
    database_url: str, *arguments: str, environ: dict[str, str] | None = None, worker: bool = False
) -> Iterator[Server]:
    """Run `memagent serve ARGUMENTS` over a database, by default without the background worker."""
    role = () if worker else ("--role", "web")
    command = [
        sys.executable,
        "-m",
        "memagent",
        "serve",
        "--listen",
        "127.0.0.1:0",
        *role,
        *arguments,
    ]
    with running(command, {"MEMAGENT_DATABASE_URL": database_url, **(environ or {})}) as server:
        yield server


@contextmanager
def running(command: list[str], environ: dict[str, str]) -> Iterator[Server]:
    """Start a server that prints its address when it is ready; kill all its processes at the end.

    Its log goes to a file, as in production. After an error, the end of the log is shown.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
    }
    with (
        tempfile.TemporaryDirectory(
            prefix="memagent-benchmark-", ignore_cleanup_errors=True
        ) as folder,
        Path(folder, "log").open("w+b") as log,
    ):
        environ = {
            "MEMAGENT_SECRET_KEY": SECRET_KEY,
            "MEMAGENT_OPEN": "1",
            "TMPDIR": folder,
            **environ,
        }
        process = subprocess.Popen(
            command, env={**inherited, **environ}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if "http://" in line), None)
            if line is None:
                raise RuntimeError(
                    f"{Path(command[0]).name} ended with {process.wait()} before it was ready"
                )
            yield Server(line[line.index("http://") :].strip(), psutil.Process(process.pid))
        except BaseException:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_SHOWN_BYTES))
            print(log.read().decode(errors="replace"), end="", file=sys.stderr)
            raise
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
