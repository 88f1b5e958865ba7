"""The faults. Each strikes when its context is entered, and is mended when it is left; a kill is mended by whoever watches over it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from random import Random

from sqlalchemy import text

from benchmarks.reliability.proxy import FAIR, Weather
from benchmarks.reliability.world import World
from memagent_server.store.engine import Database

BOTH = ("sqlite", "postgresql")
POSTGRESQL = ("postgresql",)
SQLITE = ("sqlite",)
CUT_AGENTS_BYTES = 6_000
"""A batch takes some 800 bytes to the server, its answer 250 back."""
CUT_DATABASE_BYTES = 20_000
MOST_JUMP_S = 24 * 3600.0
REFUSED = " answered 503 "


@dataclass(frozen=True)
class Fault:
    """`says`: what the server's log must say of it, as a regular expression; None where nothing goes wrong in the server's eyes.

    `holds_s`: it lasts so long before it is mended, at least and at most; and longer, until an agent was told what `felt` matches.
    """

    name: str
    strike: Callable[[World, Random], AbstractContextManager[None]]
    databases: tuple[str, ...] = BOTH
    says: str | None = None
    holds_s: tuple[float, float] = (0.0, 0.5)
    felt: str | None = None


@contextmanager
def kill_server(world: World, rng: Random) -> Iterator[None]:
    """SIGKILL to every process of the server at once; somebody starts it again."""
    world.server.kill()
    yield
    world.restart_server()


@contextmanager
def kill_web(world: World, rng: Random) -> Iterator[None]:
    rng.choice(world.web_processes()).kill()
    yield


@contextmanager
def kill_worker(world: World, rng: Random) -> Iterator[None]:
    killed = world.worker_process()
    killed.kill()
    yield
    while world.worker_process().pid == killed.pid:
        time.sleep(0.05)


@contextmanager
def stop_web(world: World, rng: Random) -> Iterator[None]:
    """Agents give up on requests that the server then serves all the same."""
    with world.stopped():
        yield


@contextmanager
def kill_backend(world: World, rng: Random) -> Iterator[None]:
    """SIGKILL to one of PostgreSQL's processes that serve connections: it ends all others, and recovers."""
    backends = [int(pid) for (pid,) in world.postgres.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = 'memagent' AND backend_type = 'client backend'"
    )]  # fmt: skip
    if backends:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(backends), signal.SIGKILL)
    yield


@contextmanager
def kill_postgres(world: World, rng: Random) -> Iterator[None]:
    world.postgres.kill()
    yield
    world.start_postgres()


@contextmanager
def restart_postgres(world: World, rng: Random) -> Iterator[None]:
    world.postgres.halt(rng.choice(["fast", "immediate"]))
    yield
    world.start_postgres()


@contextmanager
def fail_over(world: World, rng: Random) -> Iterator[None]:
    """PostgreSQL goes, and comes back at another address, which the name that the server knows then stands for."""
    world.postgres.kill()
    yield
    world.start_postgres(world.postgres.port + 1)


@contextmanager
def silent_database(world: World, rng: Random) -> Iterator[None]:
    """Connections to PostgreSQL are taken, and never answered."""
    world.back.set(Weather(is_silent=True))
    yield
    world.back.set(FAIR)


@contextmanager
def cut_database(world: World, rng: Random) -> Iterator[None]:
    """Connections to PostgreSQL break at random bytes, in the middle of statements, commits and answers."""
    world.back.set(Weather(most_bytes=CUT_DATABASE_BYTES))
    yield
    world.back.set(FAIR)


@contextmanager
def cut_agents(world: World, rng: Random) -> Iterator[None]:
    """Connections of agents break at random bytes: half bodies, and acknowledgements that never arrive."""
    world.front.set(Weather(most_bytes=CUT_AGENTS_BYTES))
    yield
    world.front.set(FAIR)


@contextmanager
def full_disk(world: World, rng: Random) -> Iterator[None]:
    with world.full_disk():
        yield
    if world.postgres is not None and not world.postgres.is_running:
        world.start_postgres()  # it gives up where not even its own recovery has room


@contextmanager
def read_only_postgres(world: World, rng: Random) -> Iterator[None]:
    """As a replica that was not promoted, or an administrator who is at work."""
    for value, between in (("on", True), ("off", False)):
        world.postgres.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        world.postgres.execute("SELECT pg_reload_conf()")
        if between:
            yield


@contextmanager
def read_only_sqlite(world: World, rng: Random) -> Iterator[None]:
    """The disk is mounted read-only, which takes a server that does not hold it, and made writable while the server runs."""
    world.server.kill()
    with _read_only(world):
        world.restart_server()
        yield


@contextmanager
def hung_disk(world: World, rng: Random) -> Iterator[None]:
    """Nobody can write for a while. A stand-in for a disk that takes seconds: a lock that another writer holds."""
    database = Database(world.database_url)
    with database.write() as session:
        if world.postgres is not None:
            session.execute(text("LOCK TABLE batches IN EXCLUSIVE MODE"))
        yield
    database.close()


@contextmanager
def jumping_clock(world: World, rng: Random) -> Iterator[None]:
    """The server's clock goes hours forth and back, and stays wrong."""
    for _ in range(4):
        world.clock_file.write_text(str(rng.uniform(-MOST_JUMP_S, MOST_JUMP_S)))
        time.sleep(0.2)
    yield


FAULTS = (
    Fault("server killed", kill_server),
    Fault("web process killed", kill_web, says="exit from worker-"),
    Fault("worker killed", kill_worker, says="the worker ended with status -9; starting it again"),
    Fault("web processes hang", stop_web, holds_s=(3.5, 8.0)),
    Fault(
        "PostgreSQL backend killed", kill_backend, POSTGRESQL
    ),  # it recovers at once: who asks meanwhile is chance
    Fault("PostgreSQL killed", kill_postgres, POSTGRESQL, says="database", felt=REFUSED),
    Fault("PostgreSQL restarted", restart_postgres, POSTGRESQL, says="database", felt=REFUSED),
    Fault("PostgreSQL at a fresh address", fail_over, POSTGRESQL, says="database", felt=REFUSED),
    Fault(
        "PostgreSQL silent",
        silent_database,
        POSTGRESQL,
        says="database",
        holds_s=(1.0, 20.0),
        felt=".",
    ),
    Fault(
        "PostgreSQL's connections cut",
        cut_database,
        POSTGRESQL,
        says="database",
        holds_s=(1.0, 5.0),
    ),
    Fault("agents' connections cut", cut_agents, holds_s=(1.0, 5.0)),
    Fault("disk full", full_disk, says="database", holds_s=(1.0, 5.0), felt=REFUSED),
    Fault(
        "database read-only",
        read_only_postgres,
        POSTGRESQL,
        says="database",
        holds_s=(1.0, 5.0),
        felt=REFUSED,
    ),
    Fault(
        "database read-only",
        read_only_sqlite,
        SQLITE,
        says="database",
        holds_s=(1.0, 5.0),
        felt=REFUSED,
    ),
    Fault("disk hangs (lock held)", hung_disk, holds_s=(4.0, 20.0)),
    Fault("server's clock jumps", jumping_clock),
)


@contextmanager
def _read_only(world: World) -> Iterator[None]:
    if world.has_own_disk:
        _remount(world, "ro")
        yield
        _remount(world, "rw")
        return
    paths = [world.disk, *world.disk.iterdir()]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    yield
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


def _remount(world: World, how: str) -> None:
    """A moment after their death, processes still hold their files."""
    for _ in range(50):
        if (
            subprocess.run(
                ["mount", "-o", f"remount,{how}", world.disk], check=False, capture_output=True
            ).returncode
            == 0
        ):
            return
        time.sleep(0.1)
    raise AssertionError(f"{world.disk} cannot be mounted {how}")
