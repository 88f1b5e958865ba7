"""Delivers the notifications of one channel from the outbox: lease, load, send, mark.

One turn, and what a SIGKILL does between two of its points:

1. Check whether a notification is due. Killed after this: nothing has happened.
2. Lease the oldest. Killed after this: the lease expires after LEASE_S, then another turn takes
   over.
3. Load the message. Killed after this: the same.
4. Send it, renewing the lease meanwhile. Killed after this: the service may or may not have the
   message. It's sent again under the same dedup key, marked as a repeat.
5. Mark it as sent, or set the time of the next attempt. Killed after this: nothing is left to do.

The lease counts the attempt, in the database and before the message leaves. So whatever happens
afterwards, MAX_ATTEMPTS leases are the end. A message that left and can't be marked is dead at
once, for people to see; only if the database is down is it sent again.

A channel that folds gets the first message of a project, rule, state and severity at once. What
follows within FOLD_S waits until then, and goes out as one message. The lease is of all of them,
and so is the mark.

A channel that can't edit its messages gets a second one when the suspect becomes known, once.

Each channel has its own dispatcher and thread: a slow channel delays no other. A channel that asks
to wait (Retry-After) gets no request until then. Only this is kept in memory: a restart may ask
once more.
"""

from __future__ import annotations

import logging
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memagent_server.alerts.schedules import quiet_until
from memagent_server.notify.channel import (
    AlertMessage,
    Channel,
    DeliveryFailedError,
    Receipt,
    mask,
    plain_receipt,
)
from memagent_server.notify.message_data import (
    edit_fingerprint,
    fold,
    lacks_suspect,
    load_message,
    refresh_message,
)
from memagent_server.notify.message_text import common_suspects
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import SEVERITIES
from memagent_server.store.due_notifications import MAX_WAIT_S, ChannelFilter, is_any_due
from memagent_server.store.engine import Database
from memagent_server.store.errors import problem_of
from memagent_server.store.models import NotificationRow, TransitionRow
from memagent_server.store.outbox import (
    MAX_ATTEMPTS,
    NotificationKind,
    add_follow_up,
    defer,
    end_refresh,
    is_follow_up,
    kind_of_notification,
    lease_alike,
    lease_for_refresh,
    lease_next,
    mark_failed,
    mark_sent,
    mark_skipped,
    refreshable,
    renew_lease,
)
from memagent_server.store.schedules import get_schedule

log = logging.getLogger(__name__)

FOLD_S = 30.0
LEASE_S = 15.0
"""Delay before a message is sent again after a crash; a longer delivery renews its lease."""
RENEW_EVERY_S = LEASE_S / 3
FIRST_RETRY_S = 2.0
MAX_RETRY_S = 900.0
REFRESH_EVERY_S = 15.0
MAX_REFRESH_INTERVAL_S = 43_200.0
"""Sent messages are refreshed at least this often, changed or not."""


class Dispatcher:
    """Delivery to one channel; messages below `least_severity` are skipped.

    `clock` returns Unix time.
    """

    def __init__(
        self,
        database: Database,
        route: ChannelFilter,
        channel: Channel,
        public_url: str,
        clock: Callable[[], float],
        *,
        least_severity: str = SEVERITIES[0],
    ) -> None:
        self._database = database
        self._route = route
        self._channel = channel
        self._public_url = public_url
        self._clock = clock
        self._min_severity = SEVERITIES.index(least_severity)
        self._paused_until = float("-inf")
        self._refreshed_at = float("-inf")
        self._fold_until: dict[NotificationKind, float] = {}
        self.name = route.channel or "no-channel"

    def turn(self) -> bool:
        """Send the next message that is due; return whether there was one."""
        now = self._clock()
        # A longer pause than the maximum means that the clock was set back.
        if 0.0 < self._paused_until - now <= MAX_WAIT_S:
            return False
        with self._database.read() as session:
            # reads first: on SQLite, every write locks the database
            is_due = is_any_due(session, self._route, now)
        if not is_due:
            self._refresh_messages(now)
            return False
        leased = self._lease(now)
        if leased:
            self._deliver(leased)
        return leased is not None

    def refresh(self, notification: NotificationRow) -> None:
        """Edit a sent message now, because somebody has acted on its alert."""
        if self._channel.can_refresh:
            self._refresh_message(notification, self._clock())

    def _lease(self, now: float) -> list[NotificationRow] | None:
        """Lease the next message: several notifications if the channel folds, none while they
        wait for others. Return None if nothing is due.
        """
        with self._database.write() as session:
            notification = lease_next(session, self._route, now, LEASE_S)
            if notification is None or not self._channel.folds:
                return None if notification is None else [notification]
            kind = kind_of_notification(session, notification)
            until = self._fold_until.get(kind, now)
            # a longer wait means that the clock was set back
            if now < until <= now + FOLD_S:
                defer(session, notification, until)
                return []
            return [notification, *lease_alike(session, self._route, notification, now, LEASE_S)]

    def _deliver(self, leased: list[NotificationRow]) -> None:
        """Send one message for all leased notifications."""
        exhausted = [item for item in leased if item.attempts > MAX_ATTEMPTS]
        if exhausted:
            self._fail(exhausted, "every attempt was interrupted before its end", None)
        sendable = [item for item in leased if item.attempts <= MAX_ATTEMPTS]
        if not sendable:
            return
        try:
            messages = self._load(sendable)
            if SEVERITIES.index(messages[0].severity) < self._min_severity:
                self._skip(sendable)
                return
            with self._renewed_lease(sendable):
                receipt = self._channel.send(fold(messages, self._public_url))
        except DeliveryFailedError as error:
            if error.retry_after_s:
                self._paused_until = self._clock() + min(error.retry_after_s, MAX_WAIT_S)
            next_attempt_at = None if error.is_final else self._next_attempt(sendable[0], error)
            self._fail(sendable, str(error), next_attempt_at)
        except Exception as error:  # noqa: BLE001 - a bug in a channel; logged with secrets masked
            log.error(
                "notification %s to %s failed:\n%s",
                sendable[0].id,
                self.name,
                self._masked_traceback(),
            )
            self._fail(sendable, type(error).__name__, self._clock() + MAX_RETRY_S)
        else:
            self._wait_for_alike(messages[0])
            suspects = common_suspects(messages)
            for notification, message in zip(sendable, messages, strict=True):
                suspect = message.suspect
                is_shown = suspect is not None and (suspect.location, suspect.fix) in suspects
                # the headline of a follow-up names it
                is_named = is_shown or message.is_follow_up
                notes = {"names_suspect": is_named} if self._channel.follows_up else {}
                self._mark_sent(notification, message, {**receipt, **notes})

    def _load(self, leased: list[NotificationRow]) -> list[AlertMessage]:
        with self._database.read() as session:
            with_curve = self._channel.wants_curve and len(leased) == 1
            now = self._clock()
            return [
                # what follows up is about the run as it is now, not as it was at the alert
                refresh_message(session, notification, self._public_url, now)
                if is_follow_up(notification)
                else load_message(
                    session, notification, self._public_url, now, with_curve=with_curve
                )
                for notification in leased
            ]

    def _wait_for_alike(self, message: AlertMessage) -> None:
        """Make notifications of this kind wait for each other from now on."""
        now = self._clock()
        waiting = {kind: until for kind, until in self._fold_until.items() if until > now}
        kind = NotificationKind(message.project, message.rule, message.to_state, message.severity)
        self._fold_until = {**waiting, kind: now + FOLD_S}

    def _mark_sent(
        self, notification: NotificationRow, message: AlertMessage, receipt: Receipt
    ) -> None:
        """Mark a notification as sent, or as dead if that fails: sending it again won't help."""
        now = self._clock()
        try:
            stored = self._stored_receipt(message, receipt, now)
            with self._database.write() as session:
                mark_sent(session, notification, stored, now)
        except Exception as error:
            if problem_of(error) is not None:
                raise  # the lease expires: the database is down, and may come back
            log.error(
                "notification %s to %s could not be marked as sent:\n%s",
                notification.id,
                notification.channel,
                self._masked_traceback(),
            )
            reason = f"it was sent, but marking it as sent failed: {type(error).__name__}"
            self._fail([notification], reason, None)

    def _stored_receipt(self, message: AlertMessage, receipt: Receipt, now: float) -> JsonObject:
        """Return a receipt as it's stored, with the state of the message if it can be edited."""
        stored: JsonObject = plain_receipt(receipt)
        return stored | _edit_state(message, now) if self._channel.can_refresh else stored

    def _skip(self, leased: list[NotificationRow]) -> None:
        least = SEVERITIES[self._min_severity]
        reason = f"this channel is only notified of severity {least} and above"
        with self._database.write() as session:
            for notification in leased:
                mark_skipped(session, notification, reason)

    def _next_attempt(self, notification: NotificationRow, error: DeliveryFailedError) -> float:
        delay_s = min(FIRST_RETRY_S * 2 ** (notification.attempts - 1), MAX_RETRY_S)
        jittered_s: float = delay_s * random.uniform(0.7, 1.3)  # noqa: S311  # nosec B311
        wait_s = max(jittered_s, error.retry_after_s or 0.0)
        return self._clock() + min(wait_s, MAX_WAIT_S)

    def _fail(
        self, leased: list[NotificationRow], reason: str, next_attempt_at: float | None
    ) -> None:
        """Mark a failed attempt; the last one, or one without a next, is the end."""
        reason = mask(reason, self._channel.secrets)
        with self._database.write() as session:
            for notification in leased:
                is_last = next_attempt_at is None or notification.attempts >= MAX_ATTEMPTS
                log.warning(
                    "notification %s to %s: %s%s",
                    notification.id,
                    notification.channel,
                    reason,
                    "; giving up" if is_last else "",
                )
                retry_at = None if is_last else next_attempt_at
                mark_failed(session, notification, reason, next_attempt_at=retry_at)

    @contextmanager
    def _renewed_lease(self, leased: list[NotificationRow]) -> Iterator[None]:
        """Renew the lease during a delivery, so that no other worker sends the same message."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(RENEW_EVERY_S):
                try:
                    with self._database.write() as session:
                        for notification in leased:
                            renew_lease(session, notification, self._clock() + LEASE_S)
                except Exception as error:  # noqa: BLE001 - the next renewal may work
                    log.warning(
                        "the lease of notification %s could not be renewed: %s",
                        leased[0].id,
                        type(error).__name__,
                    )

        thread = threading.Thread(target=renew, name=f"memagent-lease-{self.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # -- refreshing sent messages ------------------------------------------------------------------

    def _refresh_messages(self, now: float) -> None:
        """Update the messages about open alerts whose forecast has moved."""
        channel = self._route.channel
        if channel is None or not (self._channel.can_refresh or self._channel.follows_up):
            return
        if 0.0 <= now - self._refreshed_at < REFRESH_EVERY_S:
            return
        self._refreshed_at = now
        with self._database.read() as session:
            notifications = refreshable(session, channel)
        for notification in notifications:
            if self._channel.can_refresh:
                self._refresh_message(notification, now)
            else:
                self._follow_up(notification, now)

    def _follow_up(self, notification: NotificationRow, now: float) -> None:
        """Queue a second message if the suspect has become known since the first.

        Quiet hours hold it as they would have held the first.
        """
        with self._database.read() as session:
            if not lacks_suspect(session, notification):
                return
            schedule = get_schedule(session, notification.channel)
            severity = session.get_one(TransitionRow, notification.transition_id).severity
        held_until = quiet_until(schedule, severity, now) if schedule is not None else None
        with self._database.write() as session:
            add_follow_up(session, notification, now, held_until)

    def _refresh_message(self, notification: NotificationRow, now: float) -> None:
        with self._database.read() as session:
            message = refresh_message(session, notification, self._public_url, now)
        edited_at = notification.receipt.get("edited_at", now)
        is_unchanged = edit_fingerprint(message) == notification.receipt.get("fingerprint")
        if is_unchanged and now - edited_at < MAX_REFRESH_INTERVAL_S:
            return
        with self._database.write() as session:
            if not lease_for_refresh(session, notification, now, LEASE_S):
                return
        receipt = notification.receipt
        try:
            receipt = self._stored_receipt(message, self._channel.refresh(message), now)
        except DeliveryFailedError as error:
            self._paused_until = now + max(error.retry_after_s or 0.0, REFRESH_EVERY_S)
            reason = mask(str(error), self._channel.secrets)
            log.info("%s could not be refreshed: %s", self.name, reason)
        except Exception:  # noqa: BLE001 - logged with secrets masked
            log.error("%s could not be refreshed:\n%s", self.name, self._masked_traceback())
        with self._database.write() as session:
            end_refresh(session, notification, receipt)

    def _masked_traceback(self) -> str:
        return mask(traceback.format_exc(), self._channel.secrets)


def _edit_state(message: AlertMessage, now: float) -> JsonObject:
    """Return what the receipt keeps for the decision whether to edit the message again."""
    return {"fingerprint": edit_fingerprint(message), "edited_at": now}
