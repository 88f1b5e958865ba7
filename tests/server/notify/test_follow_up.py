"""The suspect reaches every channel, by an edit or by a second message, with its line and fix."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from memagent.wire.messages import SnapshotMessage, Suspect
from memagent_server.notify.dispatcher import FOLD_S, REFRESH_EVERY_S, Dispatcher
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.webhook import Webhook
from memagent_server.schemas.schedules import ChannelSchedule
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.models import AlertRow, IncidentRow, NotificationRow
from memagent_server.store.schedules import put_schedule
from memagent_server.store.snapshots import add_snapshot

SUSPECT = Suspect(
    kind="list", file="train.py", line=41, holder="losses", bytes_per_step=4096.0, confidence=0.9,
    fix="append loss.item() instead of loss",
)  # fmt: skip
CHANNELS = {
    "slack_webhook": lambda url: SlackWebhook(url, allow_local=True, sleep=lambda _: None),
    "webhook": lambda url: Webhook(url, None, allow_local=True),
}


@pytest.fixture
def warned(database, queue_alert):
    """A run with an open incident, and a message about it that waits for the channel `test`."""

    def warned(run_id: str = "r") -> None:
        alert_id = queue_alert(run_id, run_id, states=("firing",))
        with database.write() as session:
            incident = IncidentRow(
                run_id=run_id, rule="oom_forecast", state="firing", severity="warning",
                opened_at=1.0, updated_at=1.0,
            )  # fmt: skip
            session.add(incident)
            session.flush()
            session.get_one(AlertRow, alert_id).incident_id = incident.id
            for row in session.scalars(
                select(NotificationRow).where(NotificationRow.alert_id == alert_id)
            ):
                row.incident_id = incident.id

    return warned


def find_suspect(database, run_id: str = "r") -> None:
    with database.write() as session:
        message = SnapshotMessage(method="census", step=9, suspects=[SUSPECT])
        add_snapshot(session, run_id, message, 1.0)


@pytest.fixture
def dispatcher(database, receiver, clock, kind):
    channel = CHANNELS[kind](receiver.url)
    return Dispatcher(database, ChannelFilter("test"), channel, "http://x", clock)


def turns(dispatcher, clock, number: int = 6) -> None:
    for _ in range(number):
        dispatcher.turn()
        clock.now += REFRESH_EVERY_S


@pytest.mark.parametrize("kind", CHANNELS)
def test_a_second_message_names_the_suspect_once_it_is_known(
    database, receiver, clock, warned, dispatcher
):
    warned()
    turns(dispatcher, clock)
    assert len(receiver.requests) == 1 and b"train.py" not in receiver.requests[0][2]
    find_suspect(database)
    turns(dispatcher, clock)
    assert len(receiver.requests) == 2
    payload = receiver.payload()
    text = payload["text"]
    assert "r: suspect train.py:41" in text and SUSPECT.fix in text and "losses" in text
    assert payload.get("is_follow_up", True) is True


@pytest.mark.parametrize("kind", CHANNELS)
def test_a_message_that_named_it_has_no_second(database, receiver, clock, warned, dispatcher):
    warned()
    find_suspect(database)
    turns(dispatcher, clock)
    assert len(receiver.requests) == 1 and b"train.py:41" in receiver.requests[0][2]


@pytest.mark.parametrize("kind", ["slack_webhook"])
def test_runs_of_one_message_each_get_the_line(database, receiver, clock, warned, dispatcher):
    for run_id in "abc":
        warned(run_id)
    turns(dispatcher, clock, 2)
    clock.now += FOLD_S
    turns(dispatcher, clock, 2)
    assert len(receiver.requests) == 1 or len(receiver.requests) == 2
    for run_id in "abc":
        find_suspect(database, run_id)
    turns(dispatcher, clock, 12)
    sent = b"".join(body for _, _, body in receiver.requests).decode()
    assert all(f"{run_id}: suspect train.py:41" in sent for run_id in "abc")
    assert f"runs: train.py:41. Fix: {SUSPECT.fix}" in sent
    count = len(receiver.requests)
    turns(dispatcher, clock, 6)
    assert len(receiver.requests) == count


@pytest.mark.parametrize("kind", ["slack_webhook"])
def test_runs_of_one_message_share_the_fix_that_is_known(
    database, receiver, clock, warned, dispatcher
):
    for run_id in "abcd":
        warned(run_id)
    for run_id in "abc":
        find_suspect(database, run_id)
    turns(dispatcher, clock, 4)
    sent = b"".join(body for _, _, body in receiver.requests).decode()
    assert f"Suspect in 3 of 4 runs: train.py:41. Fix: {SUSPECT.fix}" in sent
    count = len(receiver.requests)
    turns(dispatcher, clock, 6)
    assert len(receiver.requests) == count, "those that were named get no second message"
    find_suspect(database, "d")
    turns(dispatcher, clock, 6)
    assert b"d: suspect train.py:41" in receiver.requests[-1][2]
    assert len(receiver.requests) == count + 1


@pytest.mark.parametrize("kind", CHANNELS)
def test_what_is_over_gets_none(database, receiver, clock, warned, dispatcher):
    warned()
    turns(dispatcher, clock)
    with database.write() as session:
        session.scalars(select(IncidentRow)).one().state = "averted"
    find_suspect(database)
    turns(dispatcher, clock)
    assert len(receiver.requests) == 1


def test_a_message_that_can_change_gets_the_line_by_an_edit(database, slack, bot, clock, warned):
    dispatcher = Dispatcher(database, ChannelFilter("test"), bot, "http://x", clock)
    warned()
    turns(dispatcher, clock)
    find_suspect(database)
    turns(dispatcher, clock)
    (root,) = slack.roots
    assert "train.py:41" in root["text"] and SUSPECT.fix in root["text"] and root["edits"] == 1


@pytest.mark.parametrize("kind", ["webhook"])
def test_quiet_hours_hold_a_second_message(database, receiver, clock, warned, dispatcher):
    clock.now = 100 * 86_400.0 + 12 * 3_600
    with database.write() as session:
        schedule = ChannelSchedule(quiet_from="00:00", quiet_to="23:00")
        put_schedule(session, "test", schedule, clock.now)
    warned()
    turns(dispatcher, clock)
    find_suspect(database)
    turns(dispatcher, clock)
    assert len(receiver.requests) == 1
    clock.now = 100 * 86_400.0 + 23 * 3_600
    turns(dispatcher, clock, 2)
    assert len(receiver.requests) == 2 and b"train.py:41" in receiver.requests[1][2]
