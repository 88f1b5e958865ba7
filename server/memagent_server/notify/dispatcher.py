"""Takes the notifications of one channel out of the outbox: lease, read, send, mark.

A turn, and what a SIGKILL does between two of its points:

1. Ask what is due. Killed after it: nothing has happened.
2. Lease the oldest. Killed after it: the lease runs out after LEASE_S, then another turn takes it up.
3. Read what the message says. Killed after it: the same.
4. Send, renewing the lease meanwhile. Killed after it: the far end may have the message, nobody knows; it is sent again under the
   same dedup key, marked as a repeat.
5. Mark it as sent, or when to try again. Killed after it: nothing is left to do.

Each channel has a dispatcher and a thread of its own, so that a slow one holds up no other. A channel that asks for patience
(Retry-After) is left alone altogether for so long. That is all that is kept in memory: a restart may ask it once more.
"""

from __future__ import annotations

import logging
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memagent_server.notify.channel import Channel, DeliveryFailedError, mask
from memagent_server.notify.message_data import mark_of, read_news, read_story
from memagent_server.settings import SEVERITIES
from memagent_server.store.engine import Database
from memagent_server.store.models import Notification
from memagent_server.store.outbox import (
    LONGEST_WAIT_S,
    MOST_ATTEMPTS,
    Route,
    end_refresh,
    is_any_due,
    lease_for_refresh,
    lease_next,
    mark_failed,
    mark_sent,
    mark_skipped,
    open_chapters,
    renew_lease,
)

log = logging.getLogger(__name__)

LEASE_S = 15.0
"""After a crash this long passes before a message is sent again; a delivery that takes longer renews its lease."""
RENEW_EVERY_S = LEASE_S / 3
FIRST_DELAY_S, LONGEST_DELAY_S = 2.0, 900.0
REFRESH_EVERY_S = 15.0
REFRESH_AT_LEAST_EVERY_S = 43_200.0


class Dispatcher:
    """One channel's deliveries. `clock` gives seconds since the epoch; `least_severity` is what the channel wants to hear of."""

    def __init__(
        self,
        database: Database,
        route: Route,
        channel: Channel,
        public_url: str,
        clock: Callable[[], float],
        *,
        least_severity: str = SEVERITIES[0],
    ) -> None:
        self._database, self._route, self._channel = database, route, channel
        self._public_url, self._clock = public_url, clock
        self._least = SEVERITIES.index(least_severity)
        self._quiet_until = self._refreshed_at = float("-inf")
        self.name = route.channel or "no-channel"

    def turn(self) -> bool:
        """Send the next message that is due; returns whether there was one."""
        now = self._clock()
        if (
            0.0 < self._quiet_until - now <= LONGEST_WAIT_S
        ):  # later than that: the clock was set back
            return False
        with self._database.read() as session:
            is_due = is_any_due(session, self._route, now)
        if not is_due:
            self._refresh(now)
            return False
        with self._database.write() as session:
            leased = lease_next(session, self._route, now, LEASE_S)
        if leased is None:
            return False
        self._deliver(leased)
        return True

    def _deliver(self, notification: Notification) -> None:
        try:
            with self._database.read() as session:
                story = read_story(
                    session,
                    notification,
                    self._public_url,
                    self._clock(),
                    with_curve=self._channel.wants_curve,
                )
            if SEVERITIES.index(story.severity) < self._least:
                self._skip(notification)
                return
            with self._renewed(notification):
                receipt = self._channel.send(story)
            if self._channel.can_refresh:
                receipt |= {"told": mark_of(story), "told_at": self._clock()}
        except DeliveryFailedError as error:
            if error.retry_after_s:
                self._quiet_until = self._clock() + min(error.retry_after_s, LONGEST_WAIT_S)
            is_over = error.is_final or notification.attempts >= MOST_ATTEMPTS
            self._fail(
                notification,
                str(error),
                None if is_over else self._next_attempt(notification, error),
            )
            return
        except Exception as error:  # noqa: BLE001 - a bug in a channel; logged with secrets masked
            log.error(
                "notification %s to %s failed:\n%s",
                notification.id,
                notification.channel,
                self._masked_traceback(),
            )
            is_over = notification.attempts >= MOST_ATTEMPTS
            self._fail(
                notification,
                type(error).__name__,
                None if is_over else self._clock() + LONGEST_DELAY_S,
            )
            return
        with self._database.write() as session:
            mark_sent(session, notification, receipt, self._clock())

    def _skip(self, notification: Notification) -> None:
        reason = f"this channel is told of {SEVERITIES[self._least]} and worse only"
        with self._database.write() as session:
            mark_skipped(session, notification, reason)

    def _next_attempt(self, notification: Notification, error: DeliveryFailedError) -> float:
        delay = min(FIRST_DELAY_S * 2 ** (notification.attempts - 1), LONGEST_DELAY_S)
        jittered: float = delay * random.uniform(0.7, 1.3)  # noqa: S311  # nosec B311
        wait = max(jittered, error.retry_after_s or 0.0)
        return float(self._clock() + min(wait, LONGEST_WAIT_S))

    def _fail(self, notification: Notification, reason: str, next_attempt_at: float | None) -> None:
        reason = mask(reason, self._channel.secrets)
        log.warning(
            "notification %s to %s: %s%s",
            notification.id,
            notification.channel,
            reason,
            "; given up" if next_attempt_at is None else "",
        )
        with self._database.write() as session:
            mark_failed(session, notification, reason, next_attempt_at=next_attempt_at)

    @contextmanager
    def _renewed(self, notification: Notification) -> Iterator[None]:
        """Renew the lease for as long as the delivery takes: nobody else sends what is being sent."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(RENEW_EVERY_S):
                try:
                    with self._database.write() as session:
                        renew_lease(session, notification, self._clock() + LEASE_S)
                except Exception as error:  # noqa: BLE001 - the next renewal may work
                    log.warning(
                        "the lease of notification %s could not be renewed: %s",
                        notification.id,
                        type(error).__name__,
                    )

        thread = threading.Thread(target=renew, name=f"memagent-lease-{self.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # -- keeping what was sent up to date ------------------------------------------------------------------------------

    def _refresh(self, now: float) -> None:
        """Edit the messages about open alerts whose forecast has moved."""
        channel = self._route.channel
        if (
            channel is None
            or not self._channel.can_refresh
            or 0.0 <= now - self._refreshed_at < REFRESH_EVERY_S
        ):
            return
        self._refreshed_at = now
        with self._database.read() as session:
            chapters = open_chapters(session, channel)
        for chapter in chapters:
            self._refresh_one(chapter, now)

    def _refresh_one(self, chapter: Notification, now: float) -> None:
        with self._database.read() as session:
            story = read_news(session, chapter, self._public_url, now)
        told_at = chapter.receipt.get("told_at", now)
        if (
            mark_of(story) == chapter.receipt.get("told")
            and now - told_at < REFRESH_AT_LEAST_EVERY_S
        ):
            return
        with self._database.write() as session:
            if not lease_for_refresh(session, chapter, now, LEASE_S):
                return
        receipt = chapter.receipt
        try:
            receipt = self._channel.refresh(story) | {"told": mark_of(story), "told_at": now}
        except DeliveryFailedError as error:
            self._quiet_until = now + max(error.retry_after_s or 0.0, REFRESH_EVERY_S)
            log.info(
                "%s was not brought up to date: %s",
                self.name,
                mask(str(error), self._channel.secrets),
            )
        except Exception:  # noqa: BLE001 - logged with secrets masked
            log.error("%s was not brought up to date:\n%s", self.name, self._masked_traceback())
        with self._database.write() as session:
            end_refresh(session, chapter, receipt)

    def _masked_traceback(self) -> str:
        return mask(traceback.format_exc(), self._channel.secrets)
