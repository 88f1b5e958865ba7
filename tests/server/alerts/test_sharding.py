"""Several workers, each on a settable clock: shards, deaths, and registration after a death."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memagent_server.alerts import sharding
from memagent_server.alerts.sharding import BEAT_S, DEAD_AFTER_S, LeasedShards, LostShards
from memagent_server.store.leases import shard_of
from memagent_server.store.models import SHARDS

KEYS = {shard_of(key): key for key in map(str, range(2_000))}
"""A key for every shard."""


class Fleet:
    """Workers that beat in turn. The wall clock is set wildly at each beat: it must not matter."""

    def __init__(self, database) -> None:
        self.database = database
        self.steady = 1_000.0
        self.clock = 1e9
        self.workers: list[LeasedShards] = []

    def join(self) -> LeasedShards:
        self.workers.append(LeasedShards(self.database, self.set_clock, lambda: self.steady))
        self.workers[-1].heartbeat()
        return self.workers[-1]

    def set_clock(self) -> float:
        self.clock = 2e9 - self.clock + 3_600
        return self.clock

    def beat(self, seconds: float, *, without: LeasedShards | None = None) -> None:
        until = self.steady + seconds
        while self.steady < until:
            self.steady += BEAT_S
            for worker in self.workers:
                if worker is not without:
                    worker.heartbeat()

    def shard_counts(self) -> list[int]:
        """Return the number of shards of each worker; none is held twice."""
        results = [
            {shard for shard, key in KEYS.items() if worker.holds(key)} for worker in self.workers
        ]
        assert sum(map(len, results)) == len(set().union(*results))
        return [len(shards) for shards in results]


@pytest.fixture
def fleet(database, monkeypatch) -> Fleet:
    assert len(KEYS) == SHARDS
    monkeypatch.setattr(
        sharding, "_process_namespace", lambda: None
    )  # as if each had its own machine
    return Fleet(database)


def test_a_single_worker_holds_all_shards_at_once(fleet):
    fleet.join()
    assert fleet.shard_counts() == [SHARDS]


def test_workers_divide_all_shards_evenly(fleet):
    for _ in range(3):
        fleet.join()
    fleet.beat(2 * BEAT_S)
    counts = fleet.shard_counts()
    assert sum(counts) == SHARDS and max(counts) == 22 and min(counts) >= 20


def test_the_shards_of_a_silent_worker_are_taken_over_within_seconds(fleet):
    silent, other = fleet.join(), fleet.join()
    fleet.beat(2 * BEAT_S)
    assert fleet.shard_counts() == [SHARDS // 2, SHARDS // 2]
    fleet.beat(DEAD_AFTER_S - BEAT_S, without=silent)
    assert sum(other.holds(key) for key in KEYS.values()) == SHARDS // 2
    fleet.beat(3 * BEAT_S, without=silent)
    assert fleet.shard_counts() == [0, SHARDS]  # the silent worker assumes that its lease is lost


def test_a_worker_declared_dead_can_not_write_and_registers_again(fleet, database):
    stopped, _ = fleet.join(), fleet.join()
    fleet.beat(2 * BEAT_S)
    key = next(key for key in KEYS.values() if stopped.holds(key))
    with database.write() as session:
        stopped.confirm(session, [key])
    fleet.beat(DEAD_AFTER_S + 3 * BEAT_S, without=stopped)
    with pytest.raises(LostShards), database.write() as session:
        stopped.confirm(session, [key])
    fleet.beat(2 * BEAT_S)
    assert fleet.shard_counts() == [SHARDS // 2, SHARDS // 2]


def test_a_worker_that_was_stopped_removes_no_peer(fleet):
    stopped, other = fleet.join(), fleet.join()
    fleet.beat(2 * BEAT_S)
    fleet.steady += 60.0  # both stopped, as on a machine that slept
    stopped.heartbeat()
    other.heartbeat()
    assert fleet.shard_counts() == [SHARDS // 2, SHARDS // 2]


def test_a_released_shard_is_free_at_once(fleet):
    leaving = fleet.join()
    fleet.join()
    fleet.beat(2 * BEAT_S)
    leaving.release()
    fleet.workers.remove(leaving)
    fleet.beat(BEAT_S)
    assert fleet.shard_counts() == [SHARDS]


def test_a_worker_whose_process_is_gone_from_this_system_is_dead_at_once(fleet, monkeypatch):
    monkeypatch.setattr(sharding, "_process_namespace", lambda: "here")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with monkeypatch.context() as patched:
        patched.setattr(sharding.os, "getpid", lambda: process.pid)
        fleet.join()
    fleet.join()
    assert fleet.workers[1].holds("any run")


@pytest.mark.postgres
def test_a_write_in_progress_is_not_taken_over(postgres_url, monkeypatch):
    from memagent_server.store.engine import Database

    monkeypatch.setattr(sharding, "_process_namespace", lambda: None)
    monkeypatch.setattr(sharding.leases, "_LOCK_TIMEOUT", "50ms")
    database = Database(postgres_url)
    fleet = Fleet(database)
    slow, other = fleet.join(), fleet.join()
    fleet.beat(2 * BEAT_S)
    keys = [key for key in KEYS.values() if slow.holds(key)]
    with database.write() as session:
        slow.confirm(session, keys)
        fleet.beat(DEAD_AFTER_S + 3 * BEAT_S, without=slow)
        assert not any(other.holds(key) for key in keys)
    fleet.beat(BEAT_S, without=slow)
    assert all(other.holds(key) for key in keys)
    database.close()
