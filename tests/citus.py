"""A private Citus cluster: a coordinator and workers, each a PostgreSQL, in one folder."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.postgres import TIMEOUT_S, PostgresCluster, cluster_folder

_OPTIONS = (
    "shared_preload_libraries=citus",
    "max_prepared_transactions=200",
    "shared_buffers=16MB",
    # the nodes are sockets, which have no TLS
    "citus.node_conninfo=sslmode=prefer",
    "citus.shard_count=8",
    # a prepared transaction whose coordinator died is resolved soon
    "citus.recover_2pc_interval=1s",
)
_UNANSWERED = (
    "SELECT pid FROM pg_stat_activity "
    "WHERE wait_event = 'SyncRep' AND backend_type = 'client backend' AND query LIKE 'COMMIT%'"
)


class CitusCluster:
    """A coordinator and two workers in a folder. `options` are settings of each node."""

    def __init__(self, programs: Path, folder: Path, *options: str) -> None:
        self._programs, self._folder, self._options = programs, folder, (*_OPTIONS, *options)
        self.coordinator = self._start("coordinator")
        self.workers = [self._start(f"worker{number}") for number in range(2)]

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of a new database with Citus, gone afterwards."""
        name = f"test_{uuid.uuid4().hex}"
        self.create(name)
        yield name
        for node in (self.coordinator, *self.workers):
            _drop_from(node, name)

    def create(self, name: str) -> None:
        """Create a database on each node, and make the workers known to the coordinator."""
        for node in (self.coordinator, *self.workers):
            _create_on(node, name)
        host, port = self.coordinator.folder, self.coordinator.port
        self.execute(name, f"SELECT citus_set_coordinator_host('{host}', {port})")
        for worker in self.workers:
            self._add(name, worker)

    def add_worker(self, name: str) -> PostgresCluster:
        """Start another worker for a database; shards may be moved to it."""
        worker = self._start(f"worker{len(self.workers)}")
        self.workers.append(worker)
        _create_on(worker, name)
        self._add(name, worker)
        return worker

    def execute(self, name: str, statement: str) -> list[Any]:
        """The rows of one statement on the coordinator, in no transaction."""
        with self.coordinator.connected(name) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def worker_of(self, name: str, run_id: str) -> PostgresCluster:
        """Return the node with a run's rows."""
        [(folder,)] = self.execute(
            name,
            "SELECT nodename FROM citus_shards WHERE shardid = "
            f"get_shard_id_for_distribution_column('runs', '{run_id}')",
        )
        return next(worker for worker in self.workers if str(worker.folder) == folder)

    @contextmanager
    def unanswered_commits(self) -> Iterator[None]:
        """Let each worker commit and never answer: it waits for a standby that doesn't exist."""
        self._set_standbys("nobody")
        try:
            yield
        finally:
            self._set_standbys("")

    def wait_for_commit(self) -> None:
        """Wait until a worker has committed without an answer."""
        until = time.monotonic() + TIMEOUT_S
        while not any(worker.execute(_UNANSWERED) for worker in self.workers):
            assert time.monotonic() < until, "no worker commits"
            time.sleep(0.01)

    def stop(self) -> None:
        for node in (self.coordinator, *self.workers):
            node.stop()

    def _set_standbys(self, names: str) -> None:
        for worker in self.workers:
            worker.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            worker.execute("SELECT pg_reload_conf()")

    def _start(self, name: str) -> PostgresCluster:
        folder = self._folder / name
        # the node's address to itself
        own = f"citus.local_hostname={folder}"
        return PostgresCluster(self._programs, folder, own, *self._options)

    def _add(self, name: str, worker: PostgresCluster) -> None:
        self.execute(name, f"SELECT citus_add_node('{worker.folder}', {worker.port})")


@contextmanager
def citus_cluster(programs: Path) -> Iterator[CitusCluster]:
    """A cluster that is gone afterwards."""
    with cluster_folder(programs, "memagent-citus-") as folder:
        cluster = CitusCluster(programs, folder)
        try:
            yield cluster
        finally:
            cluster.stop()


def is_installed(programs: Path) -> bool:
    """Return True if this PostgreSQL has the extension Citus."""
    config = subprocess.run(
        [programs / "pg_config", "--sharedir"], check=False, capture_output=True, text=True
    )
    return (Path(config.stdout.strip()) / "extension" / "citus.control").exists()


def _create_on(node: PostgresCluster, name: str) -> None:
    node.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    with node.connected(name) as connection:
        connection.execute("CREATE EXTENSION citus")


def _drop_from(node: PostgresCluster, name: str) -> None:
    """Drop a database, which a process of Citus may still be leaving."""
    from psycopg.errors import ObjectInUse

    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return node.drop(name)
        except ObjectInUse:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)
