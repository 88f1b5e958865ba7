"""The outbox on both databases: nothing lost, order kept, failures visible."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from memagent.wire.messages import RunStart
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.dispatcher import LEASE_S, Dispatcher
from memagent_server.store.alerts import add_transition, list_alerts, open_alert
from memagent_server.store.outbox import MOST_ATTEMPTS, count_by_outcome, lease_due, mark_failed, mark_sent
from memagent_server.store.runs import start_run


class Recording:
    """A channel that keeps what it was told, after `failures` have been raised."""

    def __init__(self, *failures: Exception) -> None:
        self.told: list[str] = []
        self.failures = list(failures)

    def send(self, story):
        if self.failures:
            raise self.failures.pop(0)
        self.told.append(story.to_state)
        return {"n": len(self.told)}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def outbox(database):
    """Two changes of one alert that wait for the channel `test`."""
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        alert = open_alert(session, run_id="r", stream_id=None, rule="oom_forecast", severity="warning", state="firing", step=5,
                           summary="", data={"step": 5}, now=1.0)  # fmt: skip
        for before, after in (("pending", "firing"), ("firing", "oom")):
            add_transition(session, alert, from_state=before, to_state=after, reason="", now=1.0, channels=["test"])
    return database


def notifications(database) -> list[dict]:
    with database.read() as session:
        return list_alerts(session)["alerts"][0]["notifications"]


def test_messages_of_one_alert_go_out_in_order(outbox, clock):
    channel = Recording()
    dispatcher = Dispatcher(outbox, {"test": channel}, "http://x", clock)
    while dispatcher.turn():
        pass
    assert channel.told == ["firing", "oom"]
    assert [item["state"] for item in notifications(outbox)] == ["sent", "sent"]


def test_a_failed_message_holds_back_the_later_one_and_goes_out_first(outbox, clock):
    channel = Recording(DeliveryFailedError("busy", retry_after_s=30.0))
    dispatcher = Dispatcher(outbox, {"test": channel}, "http://x", clock)
    assert dispatcher.turn() and not dispatcher.turn() and channel.told == []
    clock.now += 29
    assert not dispatcher.turn()
    clock.now += 2
    while dispatcher.turn():
        pass
    assert channel.told == ["firing", "oom"]


def test_it_gives_up_after_many_attempts_and_shows_it(outbox, clock):
    channel = Recording(*[DeliveryFailedError("no") for _ in range(MOST_ATTEMPTS)])
    dispatcher = Dispatcher(outbox, {"test": channel}, "http://x", clock)
    for _ in range(MOST_ATTEMPTS):
        clock.now += 10_000
        dispatcher.turn()
    first = notifications(outbox)[0]
    assert (first["state"], first["attempts"], first["last_error"]) == ("dead", MOST_ATTEMPTS, "no")
    with outbox.read() as session:
        assert count_by_outcome(session)["test", "dead"] == 1
    dispatcher.turn()
    assert channel.told == ["oom"]  # a dead message no longer holds back the next


def test_a_final_refusal_is_not_tried_again(outbox, clock):
    dispatcher = Dispatcher(outbox, {"test": Recording(DeliveryFailedError("gone", is_final=True))}, "http://x", clock)
    dispatcher.turn()
    assert notifications(outbox)[0]["state"] == "dead" and notifications(outbox)[0]["attempts"] == 1


def test_a_channel_that_breaks_does_not_break_the_dispatcher(outbox, clock):
    channel = Recording(ValueError("a bug"))
    dispatcher = Dispatcher(outbox, {"test": channel}, "http://x", clock)
    assert dispatcher.turn()
    assert notifications(outbox)[0]["last_error"] == "ValueError"


def test_a_channel_that_is_no_longer_set_up_is_visible(outbox, clock):
    Dispatcher(outbox, {}, "http://x", clock).turn()
    assert "no longer set up" in notifications(outbox)[0]["last_error"]


def test_a_lease_is_exclusive_until_it_runs_out(outbox):
    with outbox.write() as session:
        assert len(lease_due(session, 1000.0, LEASE_S)) == 1
    with outbox.write() as session:
        assert lease_due(session, 1000.0 + LEASE_S - 1, LEASE_S) == []
    with outbox.write() as session:
        assert len(lease_due(session, 1000.0 + LEASE_S, LEASE_S)) == 1


def test_a_failure_that_comes_late_undoes_nothing(outbox):
    """A dispatcher that slept past its lease fails, after another one has sent the message."""
    with outbox.write() as session:
        (item,) = lease_due(session, 1000.0, LEASE_S)
    with outbox.write() as session:
        (again,) = lease_due(session, 1000.0 + LEASE_S, LEASE_S)
        mark_sent(session, again.id, {}, 1001.0 + LEASE_S)
    with outbox.write() as session:
        mark_failed(session, item.id, "timed out", next_attempt_at=1002.0 + LEASE_S)
    assert item.id == again.id and notifications(outbox)[0]["state"] == "sent"


def test_a_worker_killed_while_sending_loses_nothing(outbox, clock):
    code = f"""
import os, signal
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.store.engine import Database
class Killed:
    def send(self, story):
        os.kill(os.getpid(), signal.SIGKILL)
Dispatcher(Database({outbox.url!r}), {{"test": Killed()}}, "http://x", lambda: 1000.0).turn()
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, env=dict(os.environ))
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert notifications(outbox)[0]["state"] == "leased"
    channel = Recording()
    dispatcher = Dispatcher(outbox, {"test": channel}, "http://x", clock)
    assert not dispatcher.turn()
    clock.now += LEASE_S
    while dispatcher.turn():
        pass
    assert channel.told == ["firing", "oom"]
