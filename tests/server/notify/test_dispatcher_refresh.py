"""Sent messages are refreshed while their alert is open, without notifying again."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict, replace
from sqlalchemy import select

from memagent.forecast import Forecast
from memagent.wire.messages import Batch, Chunk, Device, Event, RunStart, SnapshotMessage, Suspect
from memagent_server.notify.channel import Channel
from memagent_server.notify.dispatcher import LEASE_S, REFRESH_EVERY_S, Dispatcher
from memagent_server.notify.pagerduty import PagerDuty
from memagent_server.store.alerts import add_transition, change_alert, open_alert
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.models import AlertRow, IncidentRow, NotificationRow, StreamRow
from memagent_server.store.outbox import lease_for_refresh, lease_next
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.snapshots import add_snapshot

GIB = 2**30
TEST = ChannelFilter("test")
WARNING = Forecast(step=10, level="warning", cause="leak", eta_step=110.0, eta_low=100.0, eta_high=120.0, eta_s=100.0,
                   used_bytes=30 * GIB, limit_bytes=40 * GIB, growth_bytes_per_step=1e8, growing_since_step=1)  # fmt: skip


@pytest.fixture
def warned(database):
    """A run with a warning on rank 0, and a message about it that waits for the channel `test`."""
    steps = list(range(11))
    device = Device(id="host", kind="host", name="host", limit_bytes=40 * GIB)
    columns = {
        "step": steps,
        "time_s": [float(step) for step in steps],
        "allocated_bytes": [step * GIB for step in steps],
    }
    saved = Event(kind="checkpoint", step=8)
    blamed = Suspect(
        kind="list", file="train.py", line=7, holder="list", bytes_per_step=1e8, confidence=0.9
    )
    with database.write() as session:
        start_run(session, RunStart(run_id="r", name="gpt", devices=[device]), 1.0)
        add_batch(
            session,
            "r",
            Batch(seq=0, chunks=[Chunk(stream="host", columns=columns)], events=[saved]),
            1.0,
        )
        add_snapshot(session, "r", SnapshotMessage(method="census", step=9, suspects=[blamed]), 1.0)
        stream = session.scalars(select(StreamRow)).one()
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
        alert = open_alert(session, run_id="r", stream_id=stream.id, rule="oom_forecast", severity="warning", state="firing", step=10,
                           summary="", data=asdict(WARNING), now=1.0)  # fmt: skip
        alert.incident_id = incident.id
        add_transition(
            session,
            alert,
            from_state="pending",
            to_state="firing",
            reason="",
            now=1.0,
            channels=["test"],
        )
    return database


@pytest.fixture
def forecast(warned):
    """Return forecast(step, **changes), which stores a new forecast."""

    def forecast(step: int, **changes) -> None:
        with warned.write() as session:
            stream = session.scalars(select(StreamRow)).one()
            add_forecasts(
                session, [(stream.run_id, stream.id, replace(WARNING, step=step, **changes))], 2.0
            )

    return forecast


def test_a_message_has_all_stored_details(warned, slack, bot, clock):
    Dispatcher(warned, TEST, bot, "http://x", clock).turn()
    (root,) = slack.roots
    for words in (
        "in about 100 steps",
        "train.py:7",
        "Last checkpoint at step 8, 2 steps before",
        "http://x/runs/r",
    ):
        assert words in root["text"]
    assert root["blocks"][-1]["elements"][1]["url"].startswith("http://x/alerts#incident-")
    assert len(root["files"]) == 1 and slack.replies(root["ts"]) == []


def test_it_edits_the_message_as_the_eta_moves(warned, slack, bot, clock, forecast):
    dispatcher = Dispatcher(warned, TEST, bot, "http://x", clock)
    forecast(10)
    dispatcher.turn()
    for _ in range(3):
        clock.now += REFRESH_EVERY_S
        assert not dispatcher.turn()
    assert slack.calls.count("chat.update") == 0  # nothing has moved
    forecast(60)
    for _ in range(3):
        clock.now += REFRESH_EVERY_S
        dispatcher.turn()
    (root,) = slack.roots
    assert slack.calls.count("chat.update") == 1 and "in about 50 steps" in root["text"]
    assert slack.replies(root["ts"]) == []


def test_it_names_the_person_who_acknowledged(warned, slack, bot, clock):
    dispatcher = Dispatcher(warned, TEST, bot, "http://x", clock)
    dispatcher.turn()
    with warned.write() as session:
        incident = session.scalars(select(IncidentRow)).one()
        incident.acked_at = 3.0
        incident.acked_by = "ana"
    clock.now += REFRESH_EVERY_S
    dispatcher.turn()
    assert "Acknowledged by ana" in slack.roots[0]["text"]


def test_it_acknowledges_in_pagerduty_once(warned, receiver, clock):
    dispatcher = Dispatcher(warned, TEST, PagerDuty("key", url=receiver.url), "http://x", clock)
    dispatcher.turn()
    with warned.write() as session:
        session.scalars(select(IncidentRow)).one().acked_at = 3.0
    for _ in range(3):
        clock.now += REFRESH_EVERY_S
        dispatcher.turn()
    assert [
        receiver.payload(number)["event_action"] for number in range(len(receiver.requests))
    ] == ["trigger", "acknowledge"]


def test_it_does_not_edit_the_outcome(warned, slack, bot, clock, forecast):
    dispatcher = Dispatcher(warned, TEST, bot, "http://x", clock)
    dispatcher.turn()
    with warned.write() as session:
        alert = session.scalars(select(AlertRow)).one()
        session.scalars(select(IncidentRow)).one().state = "oom"
        change_alert(session, alert, now=2.0, state="oom")
        add_transition(
            session,
            alert,
            from_state="firing",
            to_state="oom",
            reason="",
            now=2.0,
            channels=["test"],
        )
    forecast(60)
    for _ in range(4):
        clock.now += REFRESH_EVERY_S
        dispatcher.turn()
    assert "ran out of memory" in slack.roots[0]["text"] and slack.calls.count("chat.update") == 1


def test_it_retries_a_refused_edit(warned, slack, bot, clock, forecast):
    dispatcher = Dispatcher(warned, TEST, bot, "http://x", clock)
    dispatcher.turn()
    forecast(60)
    slack.refuse("chat.update", "ratelimited", 429, Retry_After="40")
    clock.now += REFRESH_EVERY_S
    dispatcher.turn()
    clock.now += 30.0
    dispatcher.turn()
    assert slack.calls.count("chat.update") == 1  # it was asked for forty seconds of peace
    clock.now += 30.0
    dispatcher.turn()
    assert "in about 50 steps" in slack.roots[0]["text"]


def test_a_message_waits_for_the_edit_of_the_one_before_and_no_longer_than_its_lease(warned, clock):
    Dispatcher(warned, TEST, _Taking(), "http://x", clock).turn()
    with warned.write() as session:
        (chapter,) = session.scalars(select(NotificationRow))
        assert lease_for_refresh(session, chapter, clock.now, LEASE_S)
        assert not lease_for_refresh(
            session, chapter, clock.now + 1.0, LEASE_S
        )  # another worker has it
        alert = session.scalars(select(AlertRow)).one()
        add_transition(
            session,
            alert,
            from_state="firing",
            to_state="oom",
            reason="",
            now=2.0,
            channels=["test"],
        )
    with warned.write() as session:
        assert lease_next(session, TEST, clock.now + 1.0, LEASE_S) is None
        assert lease_next(session, TEST, clock.now + LEASE_S, LEASE_S) is not None
        assert not lease_for_refresh(
            session, chapter, clock.now + LEASE_S, LEASE_S
        )  # a later chapter has come


def test_a_bug_in_a_refresh_keeps_the_receipt(warned, clock, forecast, caplog):
    class Broken(_Taking):
        def refresh(self, message):
            raise ValueError("a bug with the secret in it")

    dispatcher = Dispatcher(warned, TEST, Broken(), "http://x", clock)
    dispatcher.turn()
    forecast(60)
    clock.now += REFRESH_EVERY_S
    dispatcher.turn()
    with warned.read() as session:
        (chapter,) = session.scalars(select(NotificationRow))
    assert (chapter.receipt["ts"], chapter.state, chapter.leased_until) == ("1", "sent", None)
    assert "could not be refreshed" in caplog.text and "the secret" not in caplog.text


class _Taking(Channel):
    can_refresh = True
    secrets = ("the secret",)

    def send(self, message):
        return {"ts": "1"}
