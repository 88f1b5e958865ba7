"""Takes notifications out of the outbox and to their channels: lease, send, mark."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent_server.notify.channel import Channel, DeliveryFailedError, Story
from memagent_server.store.engine import Database
from memagent_server.store.models import Alert, Notification, Prediction, Run, Stream, Transition
from memagent_server.store.outbox import MOST_ATTEMPTS, last_receipt, lease_due, mark_failed, mark_sent

log = logging.getLogger(__name__)

AT_ONCE = 2
LEASE_S = 60.0
"""Longer than the timeouts of AT_ONCE deliveries together: nobody else sends what is being sent."""
FIRST_DELAY_S, LONGEST_DELAY_S = 2.0, 900.0


class Dispatcher:
    def __init__(
        self, database: Database, channels: Mapping[str, Channel], public_url: str, clock: Callable[[], float]
    ) -> None:
        self._database, self._channels, self._public_url, self._clock = database, channels, public_url, clock

    def turn(self) -> bool:
        """Send what is due; returns whether anything was."""
        with self._database.write() as session:
            leased = lease_due(session, self._clock(), LEASE_S, AT_ONCE)
        for notification in leased:
            self._deliver(notification)
        return bool(leased)

    def _deliver(self, notification: Notification) -> None:
        channel = self._channels.get(notification.channel)
        if channel is None:
            self._fail(notification, f"channel {notification.channel} is no longer set up", None)
            return
        try:
            with self._database.read() as session:
                story = read_story(session, notification, self._public_url)
            receipt = channel.send(story)
        except DeliveryFailedError as error:
            is_over = error.is_final or notification.attempts >= MOST_ATTEMPTS
            self._fail(notification, str(error), None if is_over else self._next_attempt(notification, error))
            return
        except Exception as error:
            log.exception("notification %s to %s failed", notification.id, notification.channel)
            is_over = notification.attempts >= MOST_ATTEMPTS
            self._fail(notification, type(error).__name__, None if is_over else self._clock() + LONGEST_DELAY_S)
            return
        with self._database.write() as session:
            mark_sent(session, notification.id, receipt, self._clock())

    def _next_attempt(self, notification: Notification, error: DeliveryFailedError) -> float:
        delay = min(FIRST_DELAY_S * 2 ** (notification.attempts - 1), LONGEST_DELAY_S)
        jittered: float = delay * random.uniform(0.7, 1.3)  # noqa: S311
        wait = max(jittered, error.retry_after_s or 0.0)
        return float(self._clock() + wait)

    def _fail(self, notification: Notification, reason: str, next_attempt_at: float | None) -> None:
        log.warning(
            "notification %s to %s: %s%s",
            notification.id,
            notification.channel,
            reason,
            "; given up" if next_attempt_at is None else "",
        )
        with self._database.write() as session:
            mark_failed(session, notification.id, reason, next_attempt_at=next_attempt_at)


def read_story(session: Session, notification: Notification, public_url: str) -> Story:
    """Everything a message about this notification's transition can say."""
    alert = session.get_one(Alert, notification.alert_id)
    transition = session.get_one(Transition, notification.transition_id)
    run = session.get_one(Run, alert.run_id)
    stream = session.get(Stream, alert.stream_id) if alert.stream_id is not None else None
    return Story(
        alert_id=alert.id,
        transition_id=transition.id,
        dedup_key=notification.dedup_key,
        rule=alert.rule,
        severity=transition.severity,
        from_state=transition.from_state,
        to_state=transition.to_state,
        reason=transition.reason,
        at=transition.at,
        step=transition.step,
        first_step=alert.first_step,
        opened_at=alert.opened_at,
        facts=transition.data,
        run_id=run.id,
        run_name=run.name,
        project=run.project,
        run_url=f"{public_url}/runs/{run.id}",
        host=run.host,
        rank=stream.rank if stream else None,
        world_size=run.world_size,
        device_name=stream.name if stream else None,
        predicted_peak_bytes=_predicted_peak(session, run.id, stream),
        observed_peak_bytes=stream.peak_bytes if stream else None,
        error=run.error,
        is_repeat=notification.attempts > 1,
        receipt=last_receipt(session, alert.id, notification.channel),
    )


def _predicted_peak(session: Session, run_id: str, stream: Stream | None) -> int | None:
    if stream is None:
        return None
    query = (
        select(Prediction.peak_allocated_bytes)
        .where(Prediction.run_id == run_id, Prediction.rank == stream.rank, Prediction.device == stream.device)
        .order_by(Prediction.id.desc())
        .limit(1)
    )
    return session.scalar(query)
