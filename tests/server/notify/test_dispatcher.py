"""Dispatcher and outbox on both databases: nothing lost, order kept, failures visible."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from memagent_server.notify.channel import Channel, DeliveryFailedError, MissingChannel
from memagent_server.notify.dispatcher import LEASE_S, Dispatcher
from memagent_server.schemas.alerts import Delivery
from memagent_server.store.alerts import add_transition, list_alerts
from memagent_server.store.due_notifications import ChannelFilter, is_any_due
from memagent_server.store.models import AlertRow, IncidentRow, NotificationRow
from memagent_server.store.notifications import count_by_outcome, retry
from memagent_server.store.outbox import (
    MAX_ATTEMPTS,
    lease_next,
    mark_failed,
    mark_sent,
    renew_lease,
)
from tests.waiting import wait_until

TEST = ChannelFilter("test")


class Recording(Channel):
    """A channel that stores what it has sent, after `failures` have been raised."""

    def __init__(self, *failures: Exception) -> None:
        self.sent_states: list[str] = []
        self.overtaken: list[bool] = []
        self.topics: list[str] = []
        self.receipts: list[dict] = []
        self.failures = list(failures)

    def send(self, message):
        if self.failures:
            raise self.failures.pop(0)
        self.sent_states.append(message.to_state)
        self.overtaken.append(message.is_overtaken)
        self.topics.append(message.topic)
        self.receipts.append(message.receipt)
        return {"n": len(self.sent_states)}


@pytest.fixture
def outbox(database, queue_alert):
    """Two changes of one alert that wait for the channel `test`."""
    queue_alert()
    return database


def notifications(database) -> list[Delivery]:
    """Return the notifications of the first alert."""
    with database.read() as session:
        return list_alerts(session).alerts[-1].notifications


def test_messages_of_one_alert_go_out_in_order(outbox, clock):
    channel = Recording()
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    while dispatcher.turn():
        pass
    assert channel.sent_states == ["firing", "oom"]
    assert [item.state for item in notifications(outbox)] == ["sent", "sent"]


@pytest.mark.parametrize("set_back_s", [5.0, 3_590.0, 90_000.0])
def test_messages_go_out_at_once_although_the_clock_was_set_back(outbox, clock, set_back_s):
    channel = Recording()
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    with outbox.read() as session:
        clock.now = session.get(NotificationRow, 1).created_at - set_back_s
    while dispatcher.turn():
        pass
    assert channel.sent_states == ["firing", "oom"]


def test_a_failed_message_holds_back_the_later_one_and_goes_out_first(outbox, clock):
    channel = Recording(DeliveryFailedError("busy", retry_after_s=30.0))
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    assert dispatcher.turn() and not dispatcher.turn() and channel.sent_states == []
    clock.now += 29
    assert not dispatcher.turn()
    clock.now += 2
    while dispatcher.turn():
        pass
    assert channel.sent_states == ["firing", "oom"]


def test_it_gives_up_after_many_attempts_and_shows_it(outbox, clock):
    channel = Recording(*[DeliveryFailedError("no") for _ in range(MAX_ATTEMPTS)])
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    for _ in range(MAX_ATTEMPTS):
        clock.now += 10_000
        dispatcher.turn()
    first = notifications(outbox)[0]
    assert (first.state, first.attempts, first.last_error) == ("dead", MAX_ATTEMPTS, "no")
    with outbox.read() as session:
        assert count_by_outcome(session)["test", "dead"] == 1
    dispatcher.turn()
    assert channel.sent_states == ["oom"]  # a dead message no longer holds back the next


def test_a_final_refusal_is_not_retried(outbox, clock):
    dispatcher = Dispatcher(
        outbox, TEST, Recording(DeliveryFailedError("gone", is_final=True)), "http://x", clock
    )
    dispatcher.turn()
    assert notifications(outbox)[0].state == "dead" and notifications(outbox)[0].attempts == 1


def test_a_channel_that_breaks_does_not_break_the_dispatcher(outbox, clock):
    channel = Recording(ValueError("a bug"))
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    assert dispatcher.turn()
    assert notifications(outbox)[0].last_error == "ValueError"


def test_an_unconfigured_channel_is_visible(outbox, clock):
    Dispatcher(
        outbox, ChannelFilter(None, others=("other",)), MissingChannel(), "http://x", clock
    ).turn()
    assert "no longer configured" in notifications(outbox)[0].last_error
    assert notifications(outbox)[0].state == "waiting"  # it may be set up again


def test_a_delivery_is_leased_once_until_the_lease_expires(outbox):
    with outbox.write() as session:
        first = lease_next(session, TEST, 1000.0, LEASE_S)
    with outbox.write() as session:
        assert (
            first is not None and lease_next(session, TEST, 1000.0 + LEASE_S - 1, LEASE_S) is None
        )
        assert not is_any_due(session, TEST, 1000.0 + LEASE_S - 1)
    with outbox.write() as session:
        again = lease_next(session, TEST, 1000.0 + LEASE_S, LEASE_S)
    assert again is not None and (again.id, again.attempts) == (first.id, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"state": "sent"},
        {"state": "dead"},
        {"state": "leased", "leased_until": 1100.0},
        {"state": "leased", "leased_until": 9e6},
        {"next_attempt_at": 1100.0},
        {"next_attempt_at": 9e6},
        {"held_until": 1100.0},
        {"state": "sent", "leased_until": 1100.0},
        {"channel": "removed"},
    ],
    ids=str,
)
def test_the_quick_check_for_work_agrees_with_the_lease(outbox, changes):
    """It's made once, with the time as its parameter; a lease is looked up anew each time."""
    with outbox.write() as session:
        first = session.scalars(select(NotificationRow).order_by(NotificationRow.id)).first()
        for name, value in changes.items():
            setattr(first, name, value)
    answers = []
    for channels in (TEST, ChannelFilter("other"), ChannelFilter(None, others=("test", "x"))):
        for now in (-9e6, 1000.0, 1099.0, 1100.0, 1101.0, 5000.0):
            with outbox.write() as session:
                answer = is_any_due(session, channels, now)
                assert answer == (lease_next(session, channels, now, LEASE_S) is not None)
                session.rollback()
            answers.append(answer)
    assert set(answers) == {True, False}


def test_it_renews_only_a_lease_that_is_still_held(outbox):
    with outbox.write() as session:
        item = lease_next(session, TEST, 1000.0, LEASE_S)
        assert renew_lease(session, item, 2000.0)
    with outbox.write() as session:
        assert lease_next(session, TEST, 1999.0, LEASE_S) is None
        again = lease_next(session, TEST, 2000.0, LEASE_S)
    with outbox.write() as session:
        assert not renew_lease(session, item, 9000.0) and renew_lease(session, again, 3000.0)


@pytest.mark.parametrize("sent_meanwhile", [True, False])
def test_it_ignores_a_late_failure(outbox, sent_meanwhile):
    """A dispatcher that slept past its lease fails, after another one has taken the message up."""
    with outbox.write() as session:
        item = lease_next(session, TEST, 1000.0, LEASE_S)
    with outbox.write() as session:
        again = lease_next(session, TEST, 1000.0 + LEASE_S, LEASE_S)
        if sent_meanwhile:
            mark_sent(session, again, {}, 1001.0 + LEASE_S)
    with outbox.write() as session:
        mark_failed(session, item, "timed out", next_attempt_at=1002.0 + LEASE_S)
    assert notifications(outbox)[0].state == ("sent" if sent_meanwhile else "leased")


def test_it_accepts_a_late_success(outbox):
    with outbox.write() as session:
        item = lease_next(session, TEST, 1000.0, LEASE_S)
    with outbox.write() as session:
        lease_next(session, TEST, 1000.0 + LEASE_S, LEASE_S)
        mark_sent(session, item, {}, 1001.0 + LEASE_S)
    assert notifications(outbox)[0].state == "sent"


def test_it_renews_the_lease_of_a_long_delivery(outbox, clock, monkeypatch):
    monkeypatch.setattr("memagent_server.notify.dispatcher.RENEW_EVERY_S", 0.02)
    taken_by_another = []

    class Slow(Recording):
        def send(self, message):
            clock.now += LEASE_S  # the lease of the beginning is over
            wait_until(lambda: leased_until(outbox) > clock.now)
            with outbox.write() as session:
                taken_by_another.append(lease_next(session, TEST, clock.now, LEASE_S))
            return super().send(message)

    Dispatcher(outbox, TEST, Slow(), "http://x", clock).turn()
    assert taken_by_another == [None]


def test_a_channel_gets_no_request_before_retry_after(outbox, queue_alert, clock):
    queue_alert("another")
    channel = Recording(DeliveryFailedError("slow down", retry_after_s=30.0))
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    assert dispatcher.turn() and not dispatcher.turn() and channel.sent_states == []
    clock.now += 31.0
    while dispatcher.turn():
        pass
    assert sorted(channel.sent_states) == ["firing", "firing", "oom", "oom"]


def test_it_skips_severities_below_the_channels_minimum(outbox, clock):
    channel = Recording()
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock, least_severity="critical")
    while dispatcher.turn():
        pass
    assert (
        channel.sent_states == []
        and [item.state for item in notifications(outbox)] == ["skipped"] * 2
    )
    assert "severity critical and above" in notifications(outbox)[0].last_error


def test_a_dead_notification_can_be_resent(outbox, clock):
    channel = Recording(DeliveryFailedError("gone", is_final=True))
    dispatcher = Dispatcher(outbox, TEST, channel, "http://x", clock)
    while dispatcher.turn():
        pass
    with outbox.write() as session:
        assert retry(session, 1) and not retry(session, 2)
    assert (
        dispatcher.turn()
        and channel.sent_states == ["oom", "firing"]
        and channel.overtaken == [False, True]
    )


def test_one_channel_does_not_wait_for_another(outbox, clock):
    with outbox.write() as session:
        alert = session.get_one(AlertRow, 1)
        add_transition(
            session,
            alert,
            from_state="firing",
            to_state="oom",
            reason="",
            now=1.0,
            channels=["other"],
        )
    other = Recording()
    Dispatcher(outbox, TEST, Recording(DeliveryFailedError("down")), "http://x", clock).turn()
    Dispatcher(outbox, ChannelFilter("other"), other, "http://x", clock).turn()
    assert other.sent_states == ["oom"]


def test_alerts_of_one_incident_are_notified_in_order(outbox, queue_alert, clock):
    """Rank 1 joins an incident that rank 0 began: its message waits for those of rank 0."""
    ids = [queue_alert(states=()) for _ in range(2)]
    with outbox.write() as session:
        incident = IncidentRow(
            run_id="r",
            rule="oom_forecast",
            state="firing",
            severity="warning",
            opened_at=1.0,
            updated_at=1.0,
        )
        session.add(incident)
        session.flush()
        alerts = [session.get_one(AlertRow, alert_id) for alert_id in ids]
        for alert, state in (
            (alerts[0], "firing"),
            (alerts[1], "averted"),
            (alerts[0], "finished"),
        ):
            alert.incident_id = incident.id
            add_transition(
                session,
                alert,
                from_state="pending",
                to_state=state,
                reason="",
                now=1.0,
                channels=["incident"],
            )
    channel = Recording(DeliveryFailedError("busy", retry_after_s=5.0))
    dispatcher = Dispatcher(outbox, ChannelFilter("incident"), channel, "http://x", clock)
    assert dispatcher.turn() and not dispatcher.turn()
    clock.now += 10
    while dispatcher.turn():
        pass
    assert (
        channel.sent_states == ["firing", "averted", "finished"] and len(set(channel.topics)) == 1
    )
    assert channel.receipts == [{}, {"n": 1}, {"n": 2}]


def leased_until(database) -> float:
    with database.read() as session:
        return (
            session.scalar(select(NotificationRow.leased_until).where(NotificationRow.id == 1))
            or 0.0
        )
