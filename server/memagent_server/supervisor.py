"""`memagent serve`: supervise the web processes and the worker as child processes.

1. The parent upgrades the schema, starts the worker, and becomes granian's supervisor of the web
   processes.
2. A child that dies is restarted. SIGTERM or SIGINT to the parent ends all processes within
   seconds.
3. A killed parent cannot end its children, so each child watches its parent and exits when it's
   orphaned. Otherwise a web process would keep the port (seen with granian 2.8).
4. A web process that is asked to end accepts no new connection and answers all accepted requests: a
   committed batch is always acknowledged.
5. All processes keep their counts in one folder, so that a scrape of any of them returns the sums.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import urllib3
from flask import Flask

from memagent.errors import MemagentError, SettingError
from memagent_server import files
from memagent_server.http import local_access, web_process
from memagent_server.http.asgi import AsgiApp
from memagent_server.http.credentials import has_admin_tokens
from memagent_server.observability import logs, self_metrics
from memagent_server.settings import Settings
from memagent_server.store.engine import Database
from memagent_server.store.errors import DBAPIError, reason_of

BLOCKING_THREADS = 8
"""Concurrent requests of a web process. SQLite allows one writer at a time anyway."""
SWITCH_S = 0.0005
"""A batch waits for the interpreter after each of its statements. While a page or an export is
made, it would wait Python's default of 5 ms each time.
"""
KILL_AFTER_S = 5
PARENT_CHECK_S = 0.25
RESTART_DELAY_S = 0.5
"""The delay doubles while the worker dies within MAX_RESTART_DELAY_S of its start."""
MAX_RESTART_DELAY_S = 30.0


_log = logging.getLogger(__name__)


class ServeError(MemagentError):
    """The server cannot start; the message says why and what to do."""


def wsgi_app() -> Flask:
    """Create the app of a web process for granian or gunicorn, with settings of the environment.

    The schema must be current: `memagent serve` upgrades it; for gunicorn run `memagent db
    upgrade`. The tokens of a server on loopback are those of MEMAGENT_LISTEN.
    """
    from memagent_server.app import create_app

    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        exit_with_parent(parent.pid)
    settings = Settings.from_environ()
    logs.configure(settings)
    if parent is None:  # gunicorn
        _create_tokens(settings)
    return create_app(settings)


def asgi_app() -> AsgiApp:
    """Create the app of a web process of `memagent serve`."""
    sys.setswitchinterval(SWITCH_S)
    from memagent_server.app import create_asgi_app

    return create_asgi_app(wsgi_app(), BLOCKING_THREADS, _background)


async def _background(app: AsgiApp) -> None:
    await web_process.limit_sending()
    await web_process.beat(app)


def serve(
    settings: Settings,
    *,
    workers: int,
    with_worker: bool,
    announce: Callable[[str], None],
    is_terminal: bool = False,
    parent_pid: int | None = None,
) -> int:
    """Serve until a signal arrives, or until the parent is gone; return the exit status.

    `announce` gets the address once it answers; if it writes to a terminal, also a link that logs
    in. `settings` must be those of the environment, because children read them there. Raises
    ServeError.
    """
    logs.configure(settings)
    if parent_pid is not None:
        exit_with_parent(parent_pid)
    prepare(settings)
    check_port(settings)
    hints = _login_hints(settings, is_terminal=is_terminal)
    stopping = threading.Event()
    with _metrics_folder():
        worker = WorkerProcess() if with_worker else None
        threading.Thread(
            target=_announce, args=(settings, stopping, announce, hints), daemon=True
        ).start()
        monitor = web_process.HeartbeatMonitor()
        threading.Thread(target=monitor.run, args=(stopping,), daemon=True).start()
        try:
            return _run_granian(settings, workers)
        finally:
            stopping.set()
            if worker is not None:
                worker.stop()


def serve_worker(settings: Settings, *, parent_pid: int | None) -> int:
    """Run the worker in this process until a signal arrives."""
    from memagent_server.worker import run_worker

    gc.freeze()  # no collection visits modules and tables
    logs.configure(settings)
    if parent_pid is not None:
        exit_with_parent(parent_pid)
    else:
        prepare(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run_worker(settings, stop)
    return 0


def prepare(settings: Settings) -> None:
    """Upgrade the schema, and refuse to bind a public address without tokens.

    Raises ServeError and SchemaError.
    """
    from memagent_server.store import migrate

    database = Database(settings.database_url)
    try:
        migrate.upgrade(database)
        with database.read() as session:
            has_token = has_admin_tokens(session, settings)
    finally:
        database.close()
    if not has_token and not settings.is_loopback:
        raise ServeError(
            f"without tokens the server listens on loopback only, not on {settings.host}: run "
            "`memagent token create NAME --scope admin` first, or set MEMAGENT_ADMIN_TOKEN"
        )


def check_port(settings: Settings) -> None:
    """Raise ServeError if the address is taken: granian would share the port."""
    try:
        with _listening_socket(settings.host, settings.port):
            pass
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        reason = "the port is in use" if is_taken else error.strerror or str(error)
        raise ServeError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; "
            "choose another address with --listen HOST:PORT"
        ) from error


def with_free_port(listen: str) -> str:
    """Replace the port of `HOST:0` by a free one; return anything else unchanged."""
    host, separator, port = listen.rpartition(":")
    if not separator or port != "0":
        return listen
    try:
        with _listening_socket(host.strip("[]"), 0) as probe:
            return f"{host}:{probe.getsockname()[1]}"
    except OSError as error:
        raise SettingError(f"cannot listen on {host}: {error.strerror or error}") from error


def exit_with_parent(pid: int) -> None:
    """Exit this process as soon as its parent is no longer process `pid`."""

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(PARENT_CHECK_S)
        # not sys.exit: it would only end this thread
        os._exit(1)

    threading.Thread(target=watch, name="memagent-parent-watch", daemon=True).start()


class WorkerProcess:
    """`memagent serve --role worker` as a child process that is restarted when it dies."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(
            target=self._watch, name="memagent-worker-watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ask the child to end; kill it after KILL_AFTER_S."""
        self._stopping.set()
        self._process.terminate()
        self._thread.join(KILL_AFTER_S)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()

    def _start(self) -> subprocess.Popen[bytes]:
        serve_worker = ["serve", "--role", "worker", "--parent", str(os.getpid())]
        command = [sys.executable, "-m", "memagent", *serve_worker]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - a fixed command

    def _watch(self) -> None:
        delay_s = RESTART_DELAY_S
        while True:
            started_at = time.monotonic()
            status = self._process.wait()
            # a process that ran for long starts at the shortest delay again
            is_crash_loop = time.monotonic() - started_at < MAX_RESTART_DELAY_S
            delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S) if is_crash_loop else RESTART_DELAY_S
            if self._stopping.is_set():
                return
            _log.error("the worker exited with status %s; restarting in %.0f s", status, delay_s)
            if self._stopping.wait(delay_s):
                return
            self._process = self._start()


@contextlib.contextmanager
def _metrics_folder() -> Iterator[None]:
    """Create the folder of the processes' counts, unless the environment names one.

    It is deleted when the server ends; the folder of a killed server is deleted by the next one.
    """
    if os.environ.get(self_metrics.FOLDER):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(files.folder("memagent-counts-"))
            os.environ[self_metrics.FOLDER] = str(folder)
        except OSError as error:
            _log.warning(
                "cannot create a folder for metrics (%s): each process shows its own", error
            )
        try:
            yield
        finally:
            os.environ.pop(self_metrics.FOLDER, None)


def _run_granian(settings: Settings, workers: int) -> int:
    from granian import Granian
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels

    # spawn, not fork: a fork would copy the locks of this process's threads in any state
    multiprocessing.set_start_method("spawn", force=True)
    # each thread's own arena would keep the memory of the largest message that it decoded
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    server = Granian(
        "memagent_server:asgi_app",
        factory=True,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,  # HTTP/2 has no deadline for headers and idle connections
        http1_settings=HTTP1Settings(header_read_timeout=1000 * web_process.HEAD_TIMEOUT_S),
        address=settings.host,
        port=settings.port,
        workers=workers,
        respawn_failed_workers=True,
        workers_kill_timeout=KILL_AFTER_S,
        log_level=LogLevels.error,
        log_dictconfig={"loggers": {"_granian": {"propagate": True}}},  # not to stdout
        websockets=False,
    )
    try:
        server.serve()
    # granian ends by sys.exit; the worker and the folder are still to be ended
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _create_tokens(settings: Settings) -> None:
    database = Database(settings.database_url)
    try:
        local_access.ensure_tokens(database, settings, time.time())
    except DBAPIError as error:
        _log.warning(
            "cannot create tokens for agents (%s): run `memagent db upgrade`, then restart",
            reason_of(error),
        )
    finally:
        database.close()


def _login_hints(settings: Settings, *, is_terminal: bool) -> list[str]:
    """Create a loopback server's own tokens, and return what says how to log in.

    The link is for a terminal only: a pipe may lead to a log that others read.
    """
    database = Database(settings.database_url)
    try:
        local_access.ensure_tokens(database, settings, time.time())
        link = local_access.new_link(database, settings, time.time())
    finally:
        database.close()
    if settings.is_open or link is None:
        return []
    hint = f"memagent: `{settings.link_command}` prints a link that logs in once"
    return [*([f"memagent: open {link} (once, within 10 minutes)"] if is_terminal else []), hint]


def _announce(
    settings: Settings,
    stopping: threading.Event,
    announce: Callable[[str], None],
    hints: Sequence[str],
) -> None:
    """Wait until the server answers, then announce its address, and how to log in."""
    address = settings.local_url
    with urllib3.PoolManager(retries=False) as pool:
        while not stopping.is_set():
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                if pool.request("GET", f"{address}/healthz", timeout=2.0).status == 200:
                    announce("\n".join([f"memagent: listening on {address}", *hints]))
                    return
            stopping.wait(0.05)


def _listening_socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = socket.socket(family, kind, protocol)
    try:
        # connections of an earlier server in TIME_WAIT don't count as a taken port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()
    except OSError:
        probe.close()
        raise
    return probe
