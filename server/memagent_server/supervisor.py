"""`memagent serve`: the web server and the worker as child processes of one parent that watches over them.

1. The parent brings the schema up to date, starts the worker, and becomes granian's supervisor of the web processes.
2. A child that dies is started again. SIGTERM or SIGINT to the parent ends all of them within seconds.
3. A parent that is killed cannot end its children: so each child watches its parent and leaves at once when it is orphaned.
   Without that a web process would go on holding the port (seen with granian 2.8).
4. A web process that is asked to end takes no new connection and answers what it has accepted: a batch that is committed is acknowledged.
5. All of them count in one folder, so that a scrape of any of them shows the sum.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import urllib3
from flask import Flask

from memagent.errors import MemagentError, SettingError
from memagent_server.observability import logs, self_metrics, temp_dirs
from memagent_server.settings import Settings
from memagent_server.store import migrate
from memagent_server.store.engine import Database
from memagent_server.store.tokens import any_token

BLOCKING_THREADS = 8
"""Requests a web process works on at once; SQLite takes one writer at a time anyway."""
KILL_AFTER_S = 5
PARENT_CHECK_S = 0.25
RESTART_DELAY_S, MOST_RESTART_DELAY_S = 0.5, 30.0
"""The delay doubles while the worker dies soon after its start."""
READY_TIMEOUT_S = 30.0


_log = logging.getLogger(__name__)


class ServeError(MemagentError):
    """The server cannot start; the message says why and what to do."""


def wsgi_app() -> Flask:
    """The application, as granian and gunicorn ask for it in each web process. The settings come by environment.

    Its schema must be current: `memagent serve` sees to that, for gunicorn `memagent db upgrade` does.
    """
    from memagent_server.app import create_app

    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        leave_with_parent(parent.pid)
    settings = Settings.from_environ()
    logs.configure(settings)
    return create_app(settings)


def serve(
    settings: Settings,
    *,
    workers: int,
    with_worker: bool,
    say: Callable[[str], None],
    parent_pid: int | None = None,
) -> int:
    """Serve until a signal says stop, or until the parent is gone where one is given; returns the exit status.

    `say` is told the address once it answers. `settings` must be those that the environment gives, for children read them there.
    Raises ServeError.
    """
    logs.configure(settings)
    if parent_pid is not None:
        leave_with_parent(parent_pid)
    prepare(settings)
    check_port(settings)
    stopping = threading.Event()
    with _folder_for_counts():
        worker = WorkerProcess() if with_worker else None
        threading.Thread(target=_announce, args=(settings, stopping, say), daemon=True).start()
        try:
            return _run_granian(settings, workers)
        finally:
            stopping.set()
            if worker is not None:
                worker.stop()


def serve_worker(settings: Settings, *, parent_pid: int | None) -> int:
    """Run the worker in this process until a signal says stop."""
    from memagent_server.worker import run_worker

    logs.configure(settings)
    if parent_pid is not None:
        leave_with_parent(parent_pid)
    else:
        prepare(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run_worker(settings, stop)
    return 0


def prepare(settings: Settings) -> None:
    """Bring the schema up to date, and refuse to serve everybody to everybody. Raises ServeError and SchemaError."""
    database = Database(settings.database_url)
    try:
        migrate.upgrade(database)
        with database.read() as session:
            is_guarded = settings.admin_token is not None or any_token(session)
    finally:
        database.close()
    if not is_guarded and not settings.is_loopback:
        raise ServeError(
            f"without tokens the server listens on loopback only, not on {settings.host}: "
            "run `memagent token create NAME --scope admin` first, or set MEMAGENT_ADMIN_TOKEN"
        )


def check_port(settings: Settings) -> None:
    """Raises ServeError where the address cannot be listened on; granian itself would share a port with another server."""
    try:
        with _listening_socket(settings.host, settings.port):
            pass
    except OSError as error:
        why = (
            "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        )
        raise ServeError(
            f"cannot listen on {settings.host}:{settings.port}: {why}; choose another with --listen HOST:PORT"
        ) from error


def with_free_port(listen: str) -> str:
    """`HOST:0` with a free port in place of the 0, anything else as it is."""
    host, separator, port = listen.rpartition(":")
    if not separator or port != "0":
        return listen
    try:
        with _listening_socket(host.strip("[]"), 0) as probe:
            return f"{host}:{probe.getsockname()[1]}"
    except OSError as error:
        raise SettingError(f"cannot listen on {host}: {error.strerror or error}") from error


def leave_with_parent(pid: int) -> None:
    """End this process at once when its parent is not process `pid` any more."""

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="memagent-parent-watch", daemon=True).start()


class WorkerProcess:
    """`memagent serve --role worker` as a child process that is started again when it dies."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(
            target=self._watch, name="memagent-worker-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ask the child to end, and make it after a few seconds."""
        self._stopping.set()
        self._process.terminate()
        self._thread.join(KILL_AFTER_S)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "memagent",
            "serve",
            "--role",
            "worker",
            "--parent",
            str(os.getpid()),
        ]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own program

    def _watch(self) -> None:
        delay_s = RESTART_DELAY_S
        while True:
            started_at = time.monotonic()
            status = self._process.wait()
            is_crash_loop = time.monotonic() - started_at < MOST_RESTART_DELAY_S
            delay_s = min(2 * delay_s, MOST_RESTART_DELAY_S) if is_crash_loop else RESTART_DELAY_S
            if self._stopping.is_set():
                return
            _log.error(
                "the worker ended with status %s; starting it again in %.0f s", status, delay_s
            )
            if self._stopping.wait(delay_s):
                return
            self._process = self._start()


@contextlib.contextmanager
def _folder_for_counts() -> Iterator[None]:
    """Where the processes keep what they count, unless the environment names a folder; gone when the server ends.

    The folder of a server that was killed is taken away by the next.
    """
    if os.environ.get(self_metrics.FOLDER):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            os.environ[self_metrics.FOLDER] = str(
                stack.enter_context(temp_dirs.folder("memagent-counts-"))
            )
        except OSError as error:
            _log.warning("no folder for counters: each process's own are shown (%s)", error)
        try:
            yield
        finally:
            os.environ.pop(self_metrics.FOLDER, None)


def _run_granian(settings: Settings, workers: int) -> int:
    from granian import Granian
    from granian.constants import Interfaces
    from granian.log import LogLevels

    # spawn, not fork: this process has threads, and a fork would copy their locks in whatever state they are
    multiprocessing.set_start_method("spawn", force=True)
    server = Granian(
        "memagent_server.supervisor:wsgi_app",
        factory=True,
        interface=Interfaces.WSGI,
        address=settings.host,
        port=settings.port,
        workers=workers,
        blocking_threads=BLOCKING_THREADS,
        respawn_failed_workers=True,
        workers_kill_timeout=KILL_AFTER_S,
        log_level=LogLevels.error,
        log_dictconfig={"loggers": {"_granian": {"propagate": True}}},  # to our log, not to stdout
        websockets=False,
    )
    try:
        server.serve()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _announce(settings: Settings, stopping: threading.Event, say: Callable[[str], None]) -> None:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    address = (
        f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
    )
    until = time.monotonic() + READY_TIMEOUT_S
    with urllib3.PoolManager(retries=False) as pool:
        while not stopping.is_set() and time.monotonic() < until:
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                if pool.request("GET", f"{address}/healthz", timeout=2.0).status == 200:
                    say(f"memagent: listening on {address}")
                    return
            stopping.wait(0.05)


def _listening_socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = socket.socket(family, kind, protocol)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()
    except OSError:
        probe.close()
        raise
    return probe
