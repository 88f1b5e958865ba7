"""The worker: evaluate new samples, notice runs that fell silent, deliver notifications, keep the store small.

A turn is a function that returns whether it did anything. Each channel's notifications are sent on a thread of their own, so that a
slow Slack delays neither the evaluation that finds the next warning nor the other channels; the store's upkeep has one, too. Where several
workers share a database, each does this for its share (`alerts.leased`). Silence of a run counts only while the worker was listening: after
a start, a takeover, a sleep of the machine or a database that was away, agents get as long as ever to make themselves heard.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from memagent_server.alerts.evaluator import Evaluator
from memagent_server.alerts.sharding import BEAT_S, AllShards, LeasedShards, LostShards, Share
from memagent_server.notify import channels
from memagent_server.notify.channel import Channel, MissingChannel
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.settings import SEVERITIES, Settings
from memagent_server.store.engine import Database
from memagent_server.store.errors import SQLAlchemyError, problem_of, reason_of
from memagent_server.store.outbox import ChannelFilter
from memagent_server.store.retention import Maintenance
from memagent_server.store.runs import is_silent_since, last_seen_of_running, lose_contact

log = logging.getLogger(__name__)

IDLE_S = 0.3
MOST_PAUSE_S = 1.0
"""Between two turns it rests for as long as the last one took, within these: many streams are read together, and few soon."""
AFTER_FAILURE_S = 5.0
LOST_AFTER_S = 90.0
"""An agent sends something at least every 15 s: this much silence is six heartbeats missed."""
DEAF_AFTER_S = 30.0
"""Between two turns that succeed there are seconds: after a gap like this, nobody was listening."""
UPKEEP = "upkeep"
"""The key of what one worker does for all."""

Pause = Callable[[bool, float], float]
"""Seconds until the next turn, by whether the last one did anything and how long it took."""


class Worker:
    """Everything the worker does, a turn at a time. `clock` gives seconds since the epoch, which may be set forward or back; `steady`
    seconds that only pass. `share` says which runs and channels are this worker's."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        *,
        steady: Callable[[], float] = time.monotonic,
        share: Share | None = None,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        found = channels(settings)
        self._database, self._settings, self._lost_after_s = database, settings, lost_after_s
        self._clock, self._steady, self._share = clock, steady, share or AllShards()
        self._evaluator = Evaluator(database, tuple(found), self._share)
        self.dispatchers = (
            *(self._dispatcher(ChannelFilter(name), channel) for name, channel in found.items()),
            self._dispatcher(ChannelFilter(None, others=tuple(found)), MissingChannel()),
        )
        self.upkeep = Maintenance(database, settings.retention_days, settings.rollup_days, clock)
        self._listened_at = steady()
        self._heard: dict[str, tuple[float, float]] = {}
        """Of each running run: when it was last seen, and since when that has been so by the steady clock."""

    def turn(self) -> bool:
        """Evaluate, send, and keep the store small; returns whether there was anything to do."""
        evaluated = self.evaluate()
        sent = self.send()
        return self.keep_small() or sent or evaluated

    def evaluate(self) -> bool:
        """Everything but sending and upkeep. Raises what the database raises."""
        now = self._clock()
        lost = self._find_lost(now)
        evaluated = self._evaluator.turn(now)
        self._listened_at = self._steady()
        return evaluated or lost

    def keep_small(self) -> bool:
        """Compact, and let go of what is old; one worker does it for all."""
        return self._share.holds(UPKEEP) and self.upkeep.turn()

    def send(self) -> bool:
        """A turn of every channel, one after the other; `run_worker` gives each a thread instead."""
        return any(list(map(self.send_one, self.dispatchers)))

    def send_one(self, dispatcher: Dispatcher) -> bool:
        """A turn of one channel, where it is this worker's."""
        return self._share.holds(dispatcher.name) and dispatcher.turn()

    def _dispatcher(self, route: ChannelFilter, channel: Channel) -> Dispatcher:
        settings = self._settings
        least = settings.notify_severities.get(route.channel or "", SEVERITIES[0])
        return Dispatcher(
            self._database, route, channel, settings.public_url, self._clock, least_severity=least
        )

    def _find_lost(self, now: float) -> bool:
        """Give up the runs that have not been heard of for too long, if they could have been heard."""
        silent = self._silent()
        for run_id in silent:
            with suppress(LostShards), self._database.write() as session:
                self._share.confirm(session, (run_id,))
                seen_at = self._heard[run_id][0]
                if is_silent_since(session, run_id, seen_at):
                    lose_contact(session, run_id, now)
                    log.warning(
                        "run %s has not been heard of for %.0f s", run_id, self._lost_after_s
                    )
        return bool(silent)

    def _silent(self) -> list[str]:
        """Running runs that nothing new was seen of while this worker listened, whatever their clocks or its own say."""
        steady = self._steady()
        if steady - self._listened_at > DEAF_AFTER_S:
            self._heard.clear()
        with self._database.read() as session:
            found = last_seen_of_running(session)
        before, self._heard = self._heard, {}
        for run_id, seen_at in found.items():
            if self._share.holds(run_id):
                known = before.get(run_id)
                self._heard[run_id] = (
                    known if known is not None and known[0] == seen_at else (seen_at, steady)
                )
        return [
            run_id
            for run_id, (_, since) in self._heard.items()
            if steady - since >= self._lost_after_s
        ]


def run_worker(settings: Settings, stop: threading.Event) -> None:
    """Work until `stop` is set, beside any number of other workers on the same database. One that is away is waited for."""
    database = Database(settings.database_url)
    share = LeasedShards(database, time.time, time.monotonic)
    worker = Worker(database, settings, share=share)
    threads = [
        _thread(
            "lease", share.heartbeat, stop, lambda _did, _took_s: BEAT_S, after_failure_s=BEAT_S
        )
    ]
    for dispatcher in worker.dispatchers:
        send = partial(worker.send_one, dispatcher)
        threads.append(
            _thread(
                f"notify-{dispatcher.name}", send, stop, lambda did, _took_s: 0.0 if did else IDLE_S
            )
        )
    threads.append(
        _thread("upkeep", worker.keep_small, stop, lambda did, _took_s: 0.0 if did else IDLE_S)
    )
    _repeat(worker.evaluate, stop, lambda _did, took_s: min(max(IDLE_S, took_s), MOST_PAUSE_S))
    for thread in threads:
        thread.join(15.0)
    with suppress(SQLAlchemyError):  # then the others find out by themselves
        share.release()
    database.close()


def _thread(
    name: str, turn: Callable[[], object], stop: threading.Event, pause: Pause, **rest: float
) -> threading.Thread:
    thread = threading.Thread(
        target=_repeat, args=(turn, stop, pause), kwargs=rest, name=f"memagent-{name}", daemon=True
    )
    thread.start()
    return thread


def _repeat(
    turn: Callable[[], object],
    stop: threading.Event,
    pause: Pause,
    *,
    after_failure_s: float | None = None,
) -> None:
    while not stop.is_set():
        began = time.monotonic()
        try:
            did = bool(turn())
            stop.wait(pause(did, time.monotonic() - began))
        except Exception as error:  # noqa: BLE001 - told, and tried again
            wait_s = AFTER_FAILURE_S if after_failure_s is None else after_failure_s
            _tell(error, wait_s)
            stop.wait(wait_s)


def _tell(error: Exception, wait_s: float) -> None:
    trouble = problem_of(error)
    if isinstance(error, SQLAlchemyError) and trouble is not None:
        what, why = trouble.what, reason_of(error)
        log.error(
            "the worker waits: the database %s (%s); it tries again in %.0f s", what, why, wait_s
        )
    else:
        log.error("the worker's turn failed; it goes on in %.0f s", wait_s, exc_info=error)
