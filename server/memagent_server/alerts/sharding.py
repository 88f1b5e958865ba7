"""Sharding: a worker's fair part of the runs and channels, leased for as long as it is alive.

1. `heartbeat` runs every BEAT_S on its own thread: a long evaluation must not look like a death.
2. A peer is dead after DEAD_AFTER_S, and several heartbeats of this worker, without a heartbeat.
   A peer on this machine whose process is gone is dead at once.
3. A worker that misses heartbeats for DEAD_AFTER_S must assume its lease is lost: it holds nothing
   until the next heartbeat.
4. A worker that was declared dead registers again under a new id.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from memagent_server.store import leases
from memagent_server.store.engine import Database, Session
from memagent_server.store.errors import OperationalError
from memagent_server.store.leases import Peer, shard_of
from memagent_server.store.models import SHARDS

log = logging.getLogger(__name__)

BEAT_S = 1.5
DEAD_AFTER_S = 6.0
MIN_MISSED_BEATS = 4
"""Own heartbeats without one of a peer before it may be dead: this worker may have been stopped."""


class LostShards(Exception):  # noqa: N818 - an expected outcome, not an error
    """Raised when another worker has taken over the shard."""


class Share(Protocol):
    """A worker's part of the work. Keys are run ids and names of channels."""

    def holds(self, key: str) -> bool:
        """Return True if the key is this worker's at the moment."""
        ...

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        """Lock the shards of `keys` until the transaction ends, or raise LostShards."""
        ...


class AllShards:
    """Share of the only worker."""

    def holds(self, key: str) -> bool:
        return True

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        """No other worker can take over."""


class _PeerBeat(NamedTuple):
    """Newest heartbeat of a peer, when it appeared, and this worker's heartbeats since then."""

    beat: int
    since_s: float
    missed: int


class LeasedShards:
    """Share of one of many workers. `clock` is Unix time for people, `steady` a monotonic clock."""

    def __init__(
        self, database: Database, clock: Callable[[], float], steady: Callable[[], float]
    ) -> None:
        self._database = database
        self._clock = clock
        self._steady = steady
        self._id: str | None = None
        self._shards: frozenset[int] = frozenset()
        self._last_beat_s = float("-inf")
        self._peer_beats: dict[str, _PeerBeat] = {}

    def holds(self, key: str) -> bool:
        is_alive = self._steady() - self._last_beat_s < DEAD_AFTER_S
        return is_alive and shard_of(key) in self._shards

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        shards = {shard_of(key) for key in keys}
        if self._id is None or not shards <= self._shards:
            raise LostShards
        if not leases.hold(session, self._id, shards):
            raise LostShards

    def heartbeat(self) -> None:
        """Report that this worker is alive, remove dead ones, and rebalance.

        Raises what the database raises.
        """
        began_s = self._steady()
        self._register()
        self._last_beat_s = began_s
        with self._database.read() as session:
            peers = leases.peers(session)
        alive = self._alive_peers(peers, self._steady())
        try:
            for peer in peers:
                if peer.id not in alive:
                    self._remove_dead_worker(peer)
            self._rebalance(-(-SHARDS // max(1, len(alive))))
        except OperationalError as error:  # rows locked by another worker: retry at the next beat
            log.info("shards stay as they are: %s", type(error).__name__)

    def release(self) -> None:
        """Give up everything, so that other workers need not wait."""
        worker_id = self._id
        self._id = None
        self._shards = frozenset()
        if worker_id is not None:
            with self._database.write() as session:
                leases.remove_worker(session, worker_id)

    def _register(self) -> None:
        """Write a heartbeat, or a new row if this worker has none (any more)."""
        with self._database.write() as session:
            if self._id is not None and leases.heartbeat(session, self._id, self._clock()):
                return
            if self._id is not None:
                log.warning("this worker was declared dead; it registers again under a new id")
            self._shards = frozenset()
            self._id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"[-64:]
            leases.add_worker(
                session,
                self._id,
                place=_process_namespace(),
                pid=os.getpid(),
                host=socket.gethostname(),
                now=self._clock(),
            )

    def _alive_peers(self, peers: Collection[Peer], now_s: float) -> set[str]:
        """Note each peer's heartbeat, and return the ids of those that are alive."""
        beats: dict[str, _PeerBeat] = {}
        for peer in peers:
            last = self._peer_beats.get(peer.id)
            if last is None or last.beat != peer.beat:
                beats[peer.id] = _PeerBeat(peer.beat, now_s, 0)
            else:
                beats[peer.id] = last._replace(missed=last.missed + 1)
        self._peer_beats = beats
        return {peer.id for peer in peers if peer.id == self._id or self._is_alive(peer, now_s)}

    def _is_alive(self, peer: Peer, now_s: float) -> bool:
        last = self._peer_beats[peer.id]
        is_local = peer.place is not None and peer.place == _process_namespace()
        if is_local and not psutil.pid_exists(peer.pid):
            return False
        return last.missed < MIN_MISSED_BEATS or now_s - last.since_s < DEAD_AFTER_S

    def _remove_dead_worker(self, peer: Peer) -> None:
        with self._database.write() as session:
            is_removed = leases.remove_dead_worker(session, peer)
        if is_removed:
            log.warning("worker %s is dead; other workers take over its shards", peer.id)

    def _rebalance(self, fair_count: int) -> None:
        """Claim free shards up to the fair count, and release those above it."""
        assert self._id is not None, "the worker has just registered"
        with self._database.read() as session:
            shards = leases.shards_of(session, self._id)
        if len(shards) > fair_count:
            surplus = sorted(shards)[fair_count:]
            # Stop using them before another worker can claim them.
            self._shards = frozenset(shards.difference(surplus))
            with self._database.write() as session:
                leases.release(session, self._id, surplus)
            return
        if len(shards) < fair_count:
            with self._database.write() as session:
                shards |= leases.claim(session, self._id, fair_count - len(shards))
        self._shards = frozenset(shards)


def _process_namespace() -> str | None:
    """Return the boot id and PID namespace: equal texts mean that process ids are comparable."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
