"""The worker: evaluate new samples, notice runs that fell silent, deliver notifications, keep the store small.

A turn is a function that returns whether it did anything. Each channel's notifications are sent on a thread of their own, so that a
slow Slack delays neither the evaluation that finds the next warning nor the other channels; the store's upkeep has one, too. Silence of
a run counts only while the worker was listening: after a start, a sleep of the machine or a database that was away, agents get as long
as ever to make themselves heard.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from memagent_server.alerts.evaluator import Evaluator
from memagent_server.notify import channels
from memagent_server.notify.channel import Channel, NotSetUp
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.settings import SEVERITIES, Settings
from memagent_server.store.engine import Database
from memagent_server.store.models import Run
from memagent_server.store.outbox import Route
from memagent_server.store.runs import lose_contact
from memagent_server.store.troubles import reason_of, trouble_of
from memagent_server.store.upkeep import Upkeep

log = logging.getLogger(__name__)

IDLE_S = 0.3
AFTER_FAILURE_S = 5.0
LOST_AFTER_S = 90.0
"""An agent sends something at least every 15 s: this much silence is six heartbeats missed."""
DEAF_AFTER_S = 30.0
"""Between two turns that succeed there are seconds: after a gap like this, nobody was listening."""


class Worker:
    """Everything the worker does, a turn at a time. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        *,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        found = channels(settings)
        self._database, self._settings, self._clock, self._lost_after_s = database, settings, clock, lost_after_s
        self._evaluator = Evaluator(database, tuple(found))
        self.dispatchers = (
            *(self._dispatcher(Route(name), channel) for name, channel in found.items()),
            self._dispatcher(Route(None, apart_from=tuple(found)), NotSetUp()),
        )
        self.upkeep = Upkeep(database, settings.retention_days, settings.rollup_days, clock)
        self._listening_since = self._listened_at = clock()

    def turn(self) -> bool:
        """Evaluate, send, and keep the store small; returns whether there was anything to do."""
        evaluated = self.evaluate()
        sent = self.send()
        return self.upkeep.turn() or sent or evaluated

    def evaluate(self) -> bool:
        """Everything but sending and upkeep. Raises what the database raises."""
        now = self._clock()
        lost = self._find_lost(now)
        evaluated = self._evaluator.turn(now)
        self._listened_at = self._clock()
        return evaluated or lost

    def send(self) -> bool:
        """A turn of every channel, one after the other; `run_worker` gives each a thread instead."""
        return any(list(map(Dispatcher.turn, self.dispatchers)))

    def _dispatcher(self, route: Route, channel: Channel) -> Dispatcher:
        settings = self._settings
        least = settings.notify_severities.get(route.channel or "", SEVERITIES[0])
        return Dispatcher(self._database, route, channel, settings.public_url, self._clock, least_severity=least)

    def _find_lost(self, now: float) -> bool:
        """Give up the runs that have not been heard of for too long, if they could have been heard."""
        if now - self._listened_at > DEAF_AFTER_S:
            self._listening_since = now
        if now - self._listening_since < self._lost_after_s:
            return False
        silent = select(Run.id).where(Run.status == "running", Run.last_seen_at < now - self._lost_after_s)
        with self._database.read() as session:
            found = list(session.scalars(silent))
        for run_id in found:
            with self._database.write() as session:
                if session.scalar(silent.where(Run.id == run_id)) is not None:
                    lose_contact(session, run_id, now)
                    log.warning("run %s has not been heard of for %.0f s", run_id, self._lost_after_s)
        return bool(found)


def run_worker(settings: Settings, stop: threading.Event) -> None:
    """Work until `stop` is set. A database that is away is waited for."""
    database = Database(settings.database_url)
    worker = Worker(database, settings)
    senders = [
        threading.Thread(
            target=_repeat, args=(dispatcher.turn, stop), name=f"memagent-notify-{dispatcher.name}", daemon=True
        )
        for dispatcher in worker.dispatchers
    ]
    senders.append(
        threading.Thread(target=_repeat, args=(worker.upkeep.turn, stop), name="memagent-upkeep", daemon=True)
    )
    for sender in senders:
        sender.start()
    _repeat(worker.evaluate, stop)
    for sender in senders:
        sender.join(15.0)
    database.close()


def _repeat(turn: Callable[[], bool], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            stop.wait(0.0 if turn() else IDLE_S)
        except Exception as error:  # noqa: BLE001 - told, and tried again
            _tell(error)
            stop.wait(AFTER_FAILURE_S)


def _tell(error: Exception) -> None:
    trouble = trouble_of(error)
    if isinstance(error, SQLAlchemyError) and trouble is not None:
        what, why = trouble.what, reason_of(error)
        log.error("the worker waits: the database %s (%s); it tries again in %.0f s", what, why, AFTER_FAILURE_S)
    else:
        log.error("the worker's turn failed; it goes on in %.0f s", AFTER_FAILURE_S, exc_info=error)
