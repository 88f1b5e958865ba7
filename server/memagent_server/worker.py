"""The worker: evaluate new samples, detect lost runs, send notifications, and maintain the store.

A turn is a function that returns True if it did anything. Each channel has its own thread, so that
a slow Slack delays neither the evaluation nor other channels; so does the store's maintenance.
Workers that share a database each handle their shards (`alerts.sharding`). The silence of a run
counts only while this worker was listening: after a start, a takeover, a suspended or starved
machine or a database outage, agents get the full time again.
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
from memagent_server.notify.digests import DigestSender
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.notify.slack_actions import SlackActions
from memagent_server.settings import SEVERITIES, Settings
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.engine import Database
from memagent_server.store.errors import SQLAlchemyError, problem_of, reason_of
from memagent_server.store.models import NotificationRow
from memagent_server.store.retention import Maintenance
from memagent_server.store.runs import is_silent_since, last_seen_of_running, lose_contact

log = logging.getLogger(__name__)

IDLE_S = 0.3
MAX_PAUSE_S = 1.0
"""Evaluation pauses as long as its last turn took, between these two: this batches the reads of
many streams, and keeps the delay of a few streams short.
"""
RETRY_AFTER_S = 5.0
LOST_AFTER_S = 90.0
"""An agent sends at least every 15 s, or every 30 s if the server is busy."""
MAX_TURN_GAP_S = 30.0
"""If a worker has waited longer from one check to the next, it was not listening. Its own processor
time doesn't count: one that has much to do is slow, but not starved.
"""
JOIN_TIMEOUT_S = 15.0
MAINTENANCE = "upkeep"
"""The shard key of the work that one worker does for all."""
SLACK_ACTIONS = "slack-actions"
"""The shard key of the connection to Slack."""

Pause = Callable[[bool, float], float]
"""Seconds until the next turn, given whether the last one did anything and how long it took."""


class Worker:
    """The turns of the worker.

    `clock` is the wall clock, which may be adjusted; `steady` is monotonic; `processor` counts the
    processor time of this process. `share` decides which runs and channels are this worker's.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        *,
        steady: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
        share: Share | None = None,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self._database = database
        self._settings = settings
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._steady = steady
        self._processor = processor
        self._share = share or AllShards()
        configured = channels(settings)
        self._evaluator = Evaluator(database, tuple(configured), self._share)
        self.dispatchers = (
            *(self._dispatcher(ChannelFilter(name), item) for name, item in configured.items()),
            self._dispatcher(ChannelFilter(None, others=tuple(configured)), MissingChannel()),
        )
        self._digests = {
            name: DigestSender(
                database, name, item, settings.public_url, clock, settings.gpu_prices
            )
            for name, item in configured.items()
        }
        self.maintenance = Maintenance(
            database, settings.retention_days, settings.rollup_days, clock
        )
        self._last_check = (steady(), processor())
        self._last_contact: dict[str, tuple[float, float]] = {}
        """By run: its last_seen_at, and the steady time at which this worker first read that
        value.
        """

    def slack_actions(self) -> SlackActions | None:
        """Return the connection for the buttons of Slack's messages, if there are any."""
        settings = self._settings
        if settings.slack_app_token is None or settings.slack_bot_token is None:
            return None
        dispatchers = {dispatcher.name: dispatcher for dispatcher in self.dispatchers}

        def refresh(notification: NotificationRow) -> None:
            # channels may have been removed from the settings
            if notification.channel in dispatchers:
                dispatchers[notification.channel].refresh(notification)

        return SlackActions(
            self._database,
            settings.slack_app_token,
            settings.slack_bot_token,
            base_url=settings.slack_api_url,
            holds=partial(self._share.holds, SLACK_ACTIONS),
            refresh=refresh,
            clock=self._clock,
        )

    def turn(self) -> bool:
        """Evaluate, send and maintain once."""
        evaluated = self.evaluate()
        has_sent = self.send()
        return self.maintain() or has_sent or evaluated

    def evaluate(self) -> bool:
        """Evaluate new samples and detect lost runs. Raises database errors."""
        now = self._clock()
        has_lost_runs = self._end_lost_runs(now)
        return self._evaluator.turn(now) or has_lost_runs

    def maintain(self) -> bool:
        """Compact and prune the store; one worker does it for all."""
        return self._share.holds(MAINTENANCE) and self.maintenance.turn()

    def send(self) -> bool:
        """Run a turn of every channel; `run_worker` gives each a thread instead."""
        # a list, since any() over a generator would stop at the first channel with work
        results = [self.send_one(dispatcher) for dispatcher in self.dispatchers]
        return any(results)

    def send_one(self, dispatcher: Dispatcher) -> bool:
        """Run a turn of one channel, if it's this worker's: alerts first, then a digest."""
        if not self._share.holds(dispatcher.name):
            return False
        # channels that are no longer configured have messages, but no digests
        digests = self._digests.get(dispatcher.name)
        return dispatcher.turn() or (digests is not None and digests.turn())

    def _dispatcher(self, route: ChannelFilter, channel: Channel) -> Dispatcher:
        settings = self._settings
        lowest = settings.notify_severities.get(route.channel or "", SEVERITIES[0])
        return Dispatcher(
            self._database, route, channel, settings.public_url, self._clock, least_severity=lowest
        )

    def _end_lost_runs(self, now: float) -> bool:
        """End the silent runs, unless one has sent something since."""
        silent = self._silent_runs()
        for run_id in silent:
            with suppress(LostShards), self._database.write() as session:
                self._share.confirm(session, (run_id,))
                # checked again under the lock: a batch may have arrived since the reading
                if is_silent_since(session, run_id, self._last_contact[run_id][0]):
                    lose_contact(session, run_id, now)
                    log.warning("run %s has sent nothing for %.0f s", run_id, self._lost_after_s)
        return bool(silent)

    def _silent_runs(self) -> list[str]:
        """Return this worker's running runs without contact for `lost_after_s` of the steady clock.

        Only changes of last_seen_at matter: the wall clocks of agents and server may be wrong.
        """
        steady, used_s = self._steady(), self._processor()
        waited_s = steady - self._last_check[0] - (used_s - self._last_check[1])
        # suspended, starved or without database: silence in that time was this worker's
        if waited_s > MAX_TURN_GAP_S:
            self._last_contact.clear()
        with self._database.read() as session:
            last_seen = last_seen_of_running(session)
        self._last_check = (steady, used_s)
        previous = self._last_contact
        self._last_contact = {}
        for run_id, seen_at in last_seen.items():
            if self._share.holds(run_id):
                contact = previous.get(run_id)
                if contact is None or contact[0] != seen_at:
                    contact = (seen_at, steady)
                self._last_contact[run_id] = contact
        return [
            run_id
            for run_id, (_, since) in self._last_contact.items()
            if steady - since >= self._lost_after_s
        ]


def run_worker(settings: Settings, stop: threading.Event) -> None:
    """Work until `stop` is set, next to any number of workers on the same database.

    A database outage is waited for.
    """
    database = Database(settings.database_url)
    share = LeasedShards(database, time.time, time.monotonic)
    worker = Worker(database, settings, share=share)
    threads = [
        _start_thread(
            "lease", share.heartbeat, stop, lambda _did, _took_s: BEAT_S, retry_after_s=BEAT_S
        )
    ]
    for dispatcher in worker.dispatchers:
        send = partial(worker.send_one, dispatcher)
        threads.append(_start_thread(f"notify-{dispatcher.name}", send, stop, _pause_if_idle))
    threads.append(_start_thread("upkeep", worker.maintain, stop, _pause_if_idle))
    actions = worker.slack_actions()
    if actions is not None:
        threads.append(_start_thread("slack-actions", actions.turn, stop, _pause_if_idle))
    _repeat(worker.evaluate, stop, lambda _did, took_s: min(max(IDLE_S, took_s), MAX_PAUSE_S))
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
    if actions is not None:
        actions.close()
    with suppress(SQLAlchemyError):  # otherwise the lease expires
        share.release()
    database.close()


def _pause_if_idle(did: bool, _took_s: float) -> float:
    return 0.0 if did else IDLE_S


def _start_thread(
    name: str,
    turn: Callable[[], object],
    stop: threading.Event,
    pause: Pause,
    *,
    retry_after_s: float | None = None,
) -> threading.Thread:
    thread = threading.Thread(
        target=_repeat,
        args=(turn, stop, pause, retry_after_s),
        name=f"memagent-{name}",
        daemon=True,
    )
    thread.start()
    return thread


def _repeat(
    turn: Callable[[], object],
    stop: threading.Event,
    pause: Pause,
    retry_after_s: float | None = None,
) -> None:
    while not stop.is_set():
        started_s = time.monotonic()
        try:
            did = bool(turn())
            stop.wait(pause(did, time.monotonic() - started_s))
        except Exception as error:  # noqa: BLE001 - logged and retried
            wait_s = RETRY_AFTER_S if retry_after_s is None else retry_after_s
            _log_failure(error, wait_s)
            stop.wait(wait_s)


def _log_failure(error: Exception, wait_s: float) -> None:
    problem = problem_of(error)
    if isinstance(error, SQLAlchemyError) and problem is not None:
        log.error(
            "the worker is waiting: the database %s (%s); retrying in %.0f s",
            problem.what,
            reason_of(error),
            wait_s,
        )
    else:
        log.error("a turn of the worker failed; retrying in %.0f s", wait_s, exc_info=error)
