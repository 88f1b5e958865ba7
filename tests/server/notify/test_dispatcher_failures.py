"""Failures between outbox and channel: a deleted run, two dispatchers, names with mentions."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from email.message import EmailMessage

import pytest
from sqlalchemy import func, select

from memagent_server.notify.channel import Channel, DeliveryFailedError
from memagent_server.notify.dispatcher import LEASE_S, MAX_REFRESH_INTERVAL_S, Dispatcher
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.webhook import Webhook
from memagent_server.store.alerts import list_alerts
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.models import NotificationRow
from memagent_server.store.outbox import MAX_ATTEMPTS
from memagent_server.store.runs import delete_run

KEY = "the key"
TEST = ChannelFilter("test")


class Recording(Channel):
    def __init__(self):
        self.states = []

    def send(self, message):
        self.states.append((message.run_id, message.to_state))
        return {}


def test_a_retry_has_the_same_key_and_a_signature_of_its_body(database, queue_alert, receiver):
    queue_alert(states=("firing",))
    receiver.answers = [(500, b"", {}), (503, b"", {})]
    now = 100.0
    dispatcher = Dispatcher(
        database,
        TEST,
        Webhook(receiver.url, KEY, allow_local=True, clock=lambda: 7.0),
        "http://x",
        lambda: now,
    )
    for _ in range(4):
        now += 1000
        dispatcher.turn()
    assert len(receiver.requests) == 3
    assert len({headers["Idempotency-Key"] for _, headers, _ in receiver.requests}) == 1
    assert [json.loads(body)["is_repeat"] for _, _, body in receiver.requests] == [
        False,
        True,
        True,
    ]
    for _, headers, body in receiver.requests:
        expected = hmac.new(KEY.encode(), b"7." + body, hashlib.sha256).hexdigest()
        assert headers["X-Memagent-Signature"] == f"v1={expected}"


def test_each_transition_has_its_own_key(database, queue_alert, receiver):
    queue_alert(states=("firing", "averted"))
    dispatcher = Dispatcher(
        database,
        TEST,
        Webhook(receiver.url, KEY, allow_local=True, clock=lambda: 7.0),
        "http://x",
        lambda: 100.0,
    )
    while dispatcher.turn():
        pass
    assert len({headers["Idempotency-Key"] for _, headers, _ in receiver.requests}) == 2


def test_the_waits_grow_from_seconds_to_minutes(database, queue_alert):
    class Down(Channel):
        def send(self, message):
            raise DeliveryFailedError("down")

    queue_alert(states=("firing",))
    now, waits = 100.0, []
    dispatcher = Dispatcher(database, TEST, Down(), "http://x", lambda: now)
    for _ in range(12):
        assert dispatcher.turn()
        with database.read() as session:
            waits.append(session.scalars(select(NotificationRow.next_attempt_at)).one() - now)
        now += waits[-1]
    for number, wait in enumerate(waits):
        assert 0.69 <= wait / min(2.0 * 2**number, 900.0) <= 1.31


def test_a_message_whose_attempts_are_all_interrupted_dies(database, queue_alert):
    class KilledError(BaseException):
        """The end of the process, which no handler sees."""

    class Killing(Channel):
        attempts = 0

        def send(self, message):
            self.attempts += 1
            raise KilledError

    queue_alert(states=("firing",))
    now, channel = 100.0, Killing()
    dispatcher = Dispatcher(database, TEST, channel, "http://x", lambda: now)
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(KilledError):
            dispatcher.turn()
        now += LEASE_S
    assert dispatcher.turn() and not dispatcher.turn() and channel.attempts == MAX_ATTEMPTS
    with database.read() as session:
        notification = session.scalars(select(NotificationRow)).one()
    assert notification.state == "dead" and "interrupted" in notification.last_error


def test_a_receipt_that_no_database_stores_is_left_out(database, queue_alert):
    class Odd(Channel):
        can_refresh = True

        def send(self, message):
            mail = EmailMessage()
            mail["Message-ID"] = "<1@example.org>"
            odd = {"header": mail["Message-ID"], "list": [1], "half": "\ud800", "long": "x" * 9999}
            return {**odd, "ts": "1.1"}

        def refresh(self, message):
            return self.send(message)

    queue_alert(states=("firing",))
    now = 100.0
    dispatcher = Dispatcher(database, TEST, Odd(), "http://x", lambda: now)
    for _ in range(2):
        now += MAX_REFRESH_INTERVAL_S
        dispatcher.turn()
        with database.read() as session:
            notification = session.scalars(select(NotificationRow)).one()
        assert (notification.state, notification.receipt["edited_at"]) == ("sent", now)
        assert set(notification.receipt) == {"ts", "fingerprint", "edited_at"}


def test_a_deleted_run_blocks_no_other_message(database, queue_alert):
    queue_alert("gone", states=("firing",))
    queue_alert("stays", states=("firing",))
    channel = Recording()

    class Deleting(Dispatcher):
        def _deliver(self, notification):
            with database.write() as session:
                delete_run(session, "gone")
            super()._deliver(notification)

    deleting = Deleting(database, TEST, channel, "http://x", lambda: 200.0)
    while deleting.turn():
        pass
    assert channel.states == [("stays", "firing")]


def test_dispatchers_at_the_same_moment_send_each_message_once(database, queue_alert):
    runs = [f"run-{number}" for number in range(12)]
    for run_id in runs:
        queue_alert(run_id, states=("firing", "oom"))
    channel, barrier = Recording(), threading.Barrier(4)

    def work() -> None:
        dispatcher = Dispatcher(database, TEST, channel, "http://x", lambda: 100.0)
        barrier.wait()
        while dispatcher.turn() or waiting():
            pass

    def waiting() -> int:
        with database.read() as session:
            return session.scalar(select(func.count()).where(NotificationRow.state != "sent")) or 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(channel.states) == sorted(
        (run_id, state) for run_id in runs for state in ("firing", "oom")
    )
    for run_id in runs:
        assert [state for states, state in channel.states if states == run_id] == ["firing", "oom"]


def test_a_dead_message_is_in_the_list_of_alerts(database, queue_alert, receiver):
    queue_alert(states=("firing",))
    receiver.answers = [(404, b"", {})]
    secret = receiver.url + "/services/T0/B0/secret"
    Dispatcher(
        database, TEST, SlackWebhook(secret, allow_local=True), "http://x", lambda: 100.0
    ).turn()
    with database.read() as session:
        (result,) = list_alerts(session).alerts[0].notifications
    assert (result.state, result.attempts) == ("dead", 1)
    assert "404" in result.last_error and "secret" not in result.last_error


@pytest.mark.parametrize("kind", ["webhook", "bot"])
def test_a_name_cannot_mention_the_whole_channel(database, queue_alert, receiver, slack, bot, kind):
    queue_alert(name="<!channel> & co", states=("firing", "oom"))
    channel = SlackWebhook(receiver.url, allow_local=True) if kind == "webhook" else bot
    dispatcher = Dispatcher(database, TEST, channel, "http://x", lambda: 100.0)
    while dispatcher.turn():
        pass
    posted = [receiver.payload(number) for number in range(len(receiver.requests))] or list(
        slack.messages.values()
    )
    assert len(posted) == 2
    for message in posted:
        assert (
            "<!channel>" not in message["text"] and "&lt;!channel&gt; &amp; co" in message["text"]
        )
