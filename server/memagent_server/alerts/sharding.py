"""A worker's share where several may work side by side: a fair part of the shards, kept for as long as it is alive.

1. `beat` is called every BEAT_S, on a thread of its own: evaluating may take long, and must not look like death.
2. A peer is dead when DEAD_AFTER_S have passed, and several of one's own beats, without a change of its; one whose process is gone
   from this very system is dead at once.
3. A worker that could not beat for DEAD_AFTER_S must take itself for dead: it holds nothing until it has beaten again.
4. One that was buried begins anew under another name.

What one worker may decide on and send, where several work side by side.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

import psutil
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from memagent_server.store import leases
from memagent_server.store.engine import Database
from memagent_server.store.leases import Peer, shard_of
from memagent_server.store.models import SHARDS

log = logging.getLogger(__name__)

BEAT_S = 1.5
DEAD_AFTER_S = 6.0
_MISSED = 4


class LeasedShards:
    """See `share.Share`. `clock` is Unix time, for people; `steady` counts seconds and is never set."""

    def __init__(
        self, database: Database, clock: Callable[[], float], steady: Callable[[], float]
    ) -> None:
        self._database, self._clock, self._steady = database, clock, steady
        self._id: str | None = None
        self._held: frozenset[int] = frozenset()
        self._beaten_at = float("-inf")
        self._seen: dict[str, tuple[int, float, int]] = {}
        """Of each peer: its beat, when that was first seen, and how many of one's own beats ago."""

    def holds(self, key: str) -> bool:
        return shard_of(key) in self._held and self._steady() - self._beaten_at < DEAD_AFTER_S

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        shards = {shard_of(key) for key in keys}
        if (
            self._id is None
            or not shards <= self._held
            or not leases.hold(session, self._id, shards)
        ):
            raise LostShards

    def beat(self) -> None:
        """Say that this worker is alive, bury who is not, and come to a fair part. Raises what the database raises."""
        began = self._steady()
        self._say()
        self._beaten_at = began
        with self._database.read() as session:
            peers = leases.peers(session)
        alive = self._look(peers, self._steady())
        try:
            self._bury([peer for peer in peers if peer.id not in alive])
            self._settle(-(-SHARDS // max(1, len(alive))))
        except (
            OperationalError
        ) as error:  # rows that somebody else has locked: the next beat tries again
            log.info("shards stay as they are: %s", type(error).__name__)

    def leave(self) -> None:
        """Let go of everything, so that others need not wait."""
        worker_id, self._id, self._held = self._id, None, frozenset()
        if worker_id is not None:
            with self._database.write() as session:
                leases.leave(session, worker_id)

    def _say(self) -> None:
        with self._database.write() as session:
            if self._id is not None and leases.beat(session, self._id, self._clock()):
                return
            if self._id is not None:
                log.warning("this worker was taken for dead; it begins anew")
            self._held = frozenset()
            self._id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"[-64:]
            leases.join(
                session,
                self._id,
                place=_place(),
                pid=os.getpid(),
                host=socket.gethostname(),
                now=self._clock(),
            )

    def _look(self, peers: Collection[Peer], now: float) -> set[str]:
        """Who is alive. Remembers each peer's beat."""
        seen: dict[str, tuple[int, float, int]] = {}
        for peer in peers:
            known = self._seen.get(peer.id)
            is_news = known is None or known[0] != peer.beat
            seen[peer.id] = (
                (peer.beat, now, 0)
                if known is None or is_news
                else (known[0], known[1], known[2] + 1)
            )
        self._seen = seen
        return {peer.id for peer in peers if peer.id == self._id or self._is_alive(peer, now)}

    def _is_alive(self, peer: Peer, now: float) -> bool:
        _, since, missed = self._seen[peer.id]
        if peer.place is not None and peer.place == _place() and not psutil.pid_exists(peer.pid):
            return False
        return missed < _MISSED or now - since < DEAD_AFTER_S

    def _bury(self, dead: Collection[Peer]) -> None:
        for peer in dead:
            with self._database.write() as session:
                is_buried = leases.bury(session, peer)
            if is_buried:
                log.warning("worker %s is dead; what it worked on is taken over", peer.id)

    def _settle(self, fair: int) -> None:
        """Claim free shards up to the fair part, release what is above it."""
        assert self._id is not None, "it has just beaten"
        with self._database.read() as session:
            held = leases.held_by(session, self._id)
        if len(held) > fair:
            released = sorted(held)[fair:]
            self._held = frozenset(held.difference(released))
            with self._database.write() as session:
                leases.release(session, self._id, released)
        elif len(held) < fair:
            with self._database.write() as session:
                held |= leases.claim(session, self._id, fair - len(held))
            self._held = frozenset(held)
        else:
            self._held = frozenset(held)


def _place() -> str | None:
    """The system that this process's number is of: the same text means the same numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


class LostShards(Exception):  # noqa: N818 - no error: another worker has taken over
    """What was about to be written is another worker's by now."""


class Share(Protocol):
    """Keys are run ids, and names of channels."""

    def holds(self, key: str) -> bool:
        """Whether it is this worker's now."""
        ...

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        """Make sure that nobody else gets these until the transaction ends. Raises LostShards where somebody has."""
        ...


class AllShards:
    """The share of a worker that is alone."""

    def holds(self, key: str) -> bool:
        return True

    def confirm(self, session: Session, keys: Collection[str]) -> None:
        """Nobody else is there."""
