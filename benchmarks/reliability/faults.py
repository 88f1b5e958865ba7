"""Faults. Each strikes when its context is entered and is repaired when it is left; after a kill,
the supervisor repairs.
"""

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

from benchmarks.reliability.environment import FaultEnvironment
from benchmarks.reliability.proxy import FAIR, Weather
from memagent_server.store.engine import Database

BOTH = ("sqlite", "postgresql", "citus")
POSTGRESQL = ("postgresql", "citus")
CITUS = ("citus",)
SQLITE = ("sqlite",)
CUT_AGENTS_BYTES = 6_000
"""A batch is a request of some 1,800 bytes and a response of 250."""
CUT_DATABASE_BYTES = 20_000
MOST_JUMP_S = 24 * 3600.0
REFUSED = " answered 503 "


@dataclass(frozen=True)
class Fault:
    """One fault. `says`: regular expression that the server's log must match; None if the server
    sees no error.

    `holds_s`: minimum and maximum seconds before the repair, extended until an agent got a response
    that matches `felt`.
    """

    name: str
    strike: Callable[[FaultEnvironment, Random], AbstractContextManager[None]]
    databases: tuple[str, ...] = BOTH
    says: str | None = None
    holds_s: tuple[float, float] = (0.0, 0.5)
    felt: str | None = None


@contextmanager
def kill_server(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Send SIGKILL to every process of the server at once, then start it again."""
    world.server.kill()
    yield
    world.restart_server()


@contextmanager
def kill_web(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    rng.choice(world.web_processes()).kill()
    yield


@contextmanager
def kill_worker(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    killed = world.worker_process()
    killed.kill()
    yield
    while world.worker_process().pid == killed.pid:
        time.sleep(0.05)


@contextmanager
def stop_web(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Let agents time out on requests that the server still completes."""
    with world.stopped():
        yield


@contextmanager
def kill_backend(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Send SIGKILL to one of PostgreSQL's backends: PostgreSQL ends all others and recovers."""
    backends = [int(pid) for (pid,) in world.postgres.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = 'memagent' AND backend_type = 'client backend'"
    )]  # fmt: skip
    if backends:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(backends), signal.SIGKILL)
    yield


@contextmanager
def kill_postgres(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    world.postgres.kill()
    yield
    world.start_postgres()


@contextmanager
def restart_postgres(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    world.postgres.halt(rng.choice(["fast", "immediate"]))
    yield
    world.start_postgres()


@contextmanager
def fail_over(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Stop PostgreSQL and start it at another address, to which the server's name for it then
    resolves.
    """
    world.postgres.kill()
    yield
    world.start_postgres(world.postgres.port + 1)


@contextmanager
def silent_database(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Accept connections to PostgreSQL and never answer."""
    world.back.set(Weather(is_silent=True))
    yield
    world.back.set(FAIR)


@contextmanager
def cut_database(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Break connections to PostgreSQL at random bytes, within statements, commits and responses."""
    world.back.set(Weather(most_bytes=CUT_DATABASE_BYTES))
    yield
    world.back.set(FAIR)


@contextmanager
def cut_agents(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Break agents' connections at random bytes: half bodies, and acknowledgements that never
    arrive.
    """
    world.front.set(Weather(most_bytes=CUT_AGENTS_BYTES))
    yield
    world.front.set(FAIR)


@contextmanager
def full_disk(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    with world.full_disk():
        yield
    world.start_stopped()


@contextmanager
def read_only_postgres(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Make PostgreSQL read-only, like a replica that was not promoted."""
    for value, between in (("on", True), ("off", False)):
        world.postgres.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        world.postgres.execute("SELECT pg_reload_conf()")
        if between:
            yield


@contextmanager
def read_only_sqlite(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Mount the disk read-only, which works while no server holds it, and make it writable while
    the server runs.
    """
    world.server.kill()
    with _read_only(world):
        world.restart_server()
        yield


@contextmanager
def hung_disk(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Block all writers for a while with another writer's lock, as a slow disk would."""
    database = Database(world.database_url)
    with database.write() as session:
        if world.postgres is not None:
            session.execute(text("LOCK TABLE batches IN EXCLUSIVE MODE"))
        yield
    database.close()


@contextmanager
def kill_node(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Send SIGKILL to a node with runs."""
    node = rng.choice(world.citus.workers)
    node.kill()
    yield
    node.start()


@contextmanager
def kill_between_commits(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Send SIGKILL to the coordinator after a worker has committed and before it does."""
    with world.citus.unanswered_commits():
        world.citus.wait_for_commit()
        world.postgres.kill()
    yield
    world.start_postgres()


@contextmanager
def jumping_clock(world: FaultEnvironment, rng: Random) -> Iterator[None]:
    """Set the server's clock hours forward and back, and leave it wrong."""
    for _ in range(4):
        world.clock_file.write_text(str(rng.uniform(-MOST_JUMP_S, MOST_JUMP_S)))
        time.sleep(0.2)
    yield


FAULTS = (
    Fault("server killed", kill_server),
    Fault("web process killed", kill_web, says="exit from worker-"),
    Fault("worker killed", kill_worker, says="the worker exited with status -9; restarting"),
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
    Fault("Citus node killed", kill_node, CITUS, holds_s=(1.0, 5.0)),
    Fault(
        "coordinator killed between two commits",
        kill_between_commits,
        CITUS,
        says="database",
        felt=REFUSED,
    ),
)


@contextmanager
def _read_only(world: FaultEnvironment) -> Iterator[None]:
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


def _remount(world: FaultEnvironment, how: str) -> None:
    """Retry: processes hold their files for a moment after their end."""
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
