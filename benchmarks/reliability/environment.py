"""Target of the faults: a real server with its processes, its database on a separate disk, and a
proxy in front of each.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil

from benchmarks.reliability.proxy import Proxy
from memagent_server.store import migrate
from memagent_server.store.engine import Database
from tests.citus import CitusCluster
from tests.live_server import LiveServer
from tests.postgres import PostgresCluster

CLOCK = Path(__file__).with_name("clock")
SMALL_DISK_BYTES = 256 * 2**20
WEB_PROCESSES = 2
PATIENCE_S = 200.0
_SMALL = ("max_wal_size=32MB", "min_wal_size=32MB", "shared_buffers=16MB")


class FaultEnvironment:
    """A server over SQLite, or over PostgreSQL if `programs` is given, or over a Citus cluster of
    it with `has_citus`. Agents connect to `front`, the server connects to PostgreSQL (Citus'
    coordinator) through `back`. Use it as a context: all processes are ended at the end.

    `folder` holds everything and is removed at the end. Its `disk` holds only the database: a small
    file system if this process may mount one, else a plain folder.
    """

    def __init__(
        self, rng: Random, programs: Path | None = None, *, has_citus: bool = False
    ) -> None:
        self.name = "sqlite" if programs is None else "citus" if has_citus else "postgresql"
        self.citus: CitusCluster | None = None
        self.postgres: PostgresCluster | None = None
        self.back: Proxy | None = None
        self._rng, self._programs = rng, programs

    def __enter__(self) -> FaultEnvironment:
        with contextlib.ExitStack() as undo:
            self._make_disk(undo)
            if self._programs is not None:
                self._make_postgres(self._programs, undo)
                assert self.postgres is not None
                self.back = Proxy(self.postgres.socket, self._rng)
                undo.callback(self.back.close)
            self.start_server()
            undo.callback(self._end_server)
            self.front = Proxy(("127.0.0.1", self.port), self._rng)
            undo.callback(self.front.close)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _end_server(self) -> None:
        self.server.kill()  # the one that runs by then

    def _make_disk(self, undo: contextlib.ExitStack) -> None:
        self.folder = Path(
            undo.enter_context(tempfile.TemporaryDirectory(prefix="memagent-world-"))
        )
        self.folder.chmod(0o755)  # PostgreSQL's account must get through
        self.disk, self.clock_file = self.folder / "disk", self.folder / "clock"
        self.disk.mkdir()
        # a cluster has three servers on it
        disk_bytes = SMALL_DISK_BYTES * (3 if self.name == "citus" else 1)
        self.has_own_disk = _mount(self.disk, disk_bytes)
        if self.has_own_disk:
            undo.callback(lambda: subprocess.run(["umount", "--lazy", self.disk], check=True))
        self.clock_file.write_text("0")

    def _make_postgres(self, programs: Path, undo: contextlib.ExitStack) -> None:
        if self.name == "citus":
            self.citus = CitusCluster(programs, self.disk, *_SMALL)
            undo.callback(self.citus.stop)
            self.postgres = self.citus.coordinator
            self.citus.create("memagent")
            database = Database(self.postgres.url("memagent"))
            migrate.distribute(database)
            database.close()
            return
        self.postgres = PostgresCluster(programs, self.disk / "postgres", *_SMALL)
        undo.callback(self.postgres.stop)
        self.postgres.execute("CREATE DATABASE memagent")

    @property
    def agents_url(self) -> str:
        return f"http://{self.front.address}"

    @property
    def database_url(self) -> str:
        """The database for the checker, without a proxy."""
        if self.postgres is not None:
            return self.postgres.url("memagent")
        return f"sqlite:///{self.disk / 'memagent.db'}"

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def start_server(self, port: int = 0) -> None:
        """Start the server. Raises AssertionError with its log if it doesn't start."""
        through = self.database_url
        if self.back is not None:
            through = f"postgresql+psycopg://postgres@{self.back.address}/memagent"
        environ = {
            "MEMAGENT_DATABASE_URL": through,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CLOCK), os.environ.get("PYTHONPATH")])),
            "RELIABILITY_CLOCK": str(self.clock_file),
        }
        arguments = ("--workers", str(WEB_PROCESSES))
        self.server = LiveServer.start(
            self.folder / "server", f"127.0.0.1:{port}", arguments, environ
        )

    def restart_server(self) -> None:
        self.start_server(self.port)

    def start_postgres(self, port: int | None = None) -> None:
        """Start PostgreSQL at the same or another address; the server reaches it through the same
        proxy.
        """
        assert self.postgres is not None
        assert self.back is not None
        self.postgres.start(port)
        self.back.aim(self.postgres.socket)

    def start_stopped(self) -> None:
        """Start the nodes that a full disk has ended: there was no room for their own recovery."""
        if self.postgres is not None and not self.postgres.is_running:
            self.start_postgres()
        for worker in self.citus.workers if self.citus is not None else ():
            if not worker.is_running:
                worker.start()

    def log_since(self, at: int) -> str:
        """Return what the server wrote to its log since it was `at` characters long."""
        return self.server.errors[at:]

    def web_processes(self) -> list[psutil.Process]:
        return self._children("spawn_main")

    def worker_process(self) -> psutil.Process:
        """Wait for the worker; after its death the supervisor needs a moment to start another."""
        until = time.monotonic() + PATIENCE_S
        while not (workers := self._children("--role worker")):
            assert time.monotonic() < until, "the server has no worker"
            time.sleep(0.05)
        return workers[0]

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the database's disk with a ballast file, or limit file sizes (RLIMIT_FSIZE) without
        a separate disk.
        """
        if self.postgres is None:
            with contextlib.closing(
                sqlite3.connect(self.disk / "memagent.db", timeout=PATIENCE_S)
            ) as connection:
                connection.execute(
                    "PRAGMA wal_checkpoint(TRUNCATE)"
                )  # it would go on in what its log takes up already
        with self._ballast() if self.has_own_disk else self._no_growth():
            yield

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop every web process, like a machine that is paused or swaps."""
        stopped = self.web_processes()
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def _children(self, word: str) -> list[psutil.Process]:
        """Return the server's live processes with `word` in their command line."""
        children = []
        for child in psutil.Process(self.server.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if word in " ".join(child.cmdline()):
                    children.append(child)
        return children

    @contextmanager
    def _ballast(self) -> Iterator[None]:
        ballast = self.disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (2**20, 2**12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        try:
            yield
        finally:
            ballast.unlink()

    @contextmanager
    def _no_growth(self) -> Iterator[None]:
        """Enough for the server's log, less than any write-ahead log."""
        roots = [
            self.server.process.pid,
            *([self.postgres.pid] if self.postgres is not None else []),
        ]
        limited = [
            process
            for pid in roots
            for process in (psutil.Process(pid), *psutil.Process(pid).children(True))
        ]
        for process in limited:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2**17, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            for process in limited:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(
                        process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2
                    )


def _mount(folder: Path, size: int) -> bool:
    """Mount a small file system on the folder. Return False unless this is Linux and root."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    command = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={size},mode=755",
        "memagent-reliability",
        folder,
    ]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
