"""What the faults strike: a real server with its processes, its database on a disk of its own, and a proxy before each of the two."""

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
from tests.live_server import LiveServer
from tests.postgres import PostgresCluster

CLOCK = Path(__file__).with_name("clock")
SMALL_DISK_BYTES = 256 * 2**20
WEB_PROCESSES = 2
PATIENCE_S = 30.0


class World:
    """A server over SQLite, or with `programs` (of PostgreSQL) over PostgreSQL. Agents talk to `front`, the server to PostgreSQL through
    `back`. Use it as a context: in the end all processes are gone.

    `folder` holds everything and is removed in the end. `disk` in it holds the database and nothing else: a small file system of its own
    where this process may mount one, a plain folder elsewhere.
    """

    def __init__(self, rng: Random, programs: Path | None = None) -> None:
        self.name = "sqlite" if programs is None else "postgresql"
        self.postgres: PostgresCluster | None = None
        self.back: Proxy | None = None
        self._rng, self._programs = rng, programs

    def __enter__(self) -> World:
        with contextlib.ExitStack() as undo:
            self._make_disk(undo)
            if self._programs is not None:
                self._make_postgres(self._programs, undo)
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
        self.has_own_disk = _mount(self.disk)
        if self.has_own_disk:
            undo.callback(lambda: subprocess.run(["umount", "--lazy", self.disk], check=True))
        self.clock_file.write_text("0")

    def _make_postgres(self, programs: Path, undo: contextlib.ExitStack) -> None:
        small = ("max_wal_size=32MB", "min_wal_size=32MB", "shared_buffers=16MB")
        self.postgres = PostgresCluster(programs, self.disk / "postgres", *small)
        undo.callback(self.postgres.stop)
        self.postgres.execute("CREATE DATABASE memagent")
        self.back = Proxy(self.postgres.socket, self._rng)
        undo.callback(self.back.close)

    @property
    def agents_url(self) -> str:
        return f"http://{self.front.address}"

    @property
    def database_url(self) -> str:
        """The database as the checker reads it: by no proxy."""
        if self.postgres is not None:
            return self.postgres.url("memagent")
        return f"sqlite:///{self.disk / 'memagent.db'}"

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def start_server(self, port: int = 0) -> None:
        """Raises AssertionError, with what it said, where it does not start."""
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
        """Where it was, or at a fresh address; the server finds it behind the same proxy."""
        assert self.postgres is not None
        assert self.back is not None
        self.postgres.start(port)
        self.back.aim(self.postgres.socket)

    def log_since(self, at: int) -> str:
        """What the server has written to its log since it was `at` characters long."""
        return self.server.errors[at:]

    def web_processes(self) -> list[psutil.Process]:
        return self._children("spawn_main")

    def worker_process(self) -> psutil.Process:
        """The worker; a moment after its death there is none yet, so it is waited for."""
        until = time.monotonic() + PATIENCE_S
        while not (found := self._children("--role worker")):
            assert time.monotonic() < until, "the server has no worker"
            time.sleep(0.05)
        return found[0]

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Not a byte more fits: a ballast fills the database's disk, or without a disk of its own, no file may grow (RLIMIT_FSIZE)."""
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
        """Every web process hangs, as in a machine that is paused or swaps."""
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
        """Those of the server that live and have `word` in their command line."""
        found = []
        for child in psutil.Process(self.server.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if word in " ".join(child.cmdline()):
                    found.append(child)
        return found

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
        """Enough for the server's log, less than any write-ahead log has already."""
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


def _mount(folder: Path) -> bool:
    """Whether the folder is now a small file system of its own; that takes Linux, and root."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    command = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size={SMALL_DISK_BYTES},mode=755",
        "memagent-reliability",
        folder,
    ]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
