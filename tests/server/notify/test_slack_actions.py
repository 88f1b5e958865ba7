"""Buttons in Slack, by Socket Mode: the real client against a WebSocket server of Slack's kind."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from sqlalchemy import select

from memagent.wire.messages import RunStart
from memagent_server import worker
from memagent_server.notify import slack_actions
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.notify.slack_actions import SlackAction, SlackActions, read_action
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.engine import Database
from memagent_server.store.models import FeedbackRow, IncidentRow
from memagent_server.store.runs import delete_run, start_run
from tests.server.notify.socket_mode import SocketMode
from tests.waiting import PATIENCE_S, wait_until

APP_TOKEN = "xapp-1-secret"
BUTTONS = {"memagent-ack", "memagent-snooze", "memagent-false-alarm"}


@pytest.fixture
def socket_mode(slack):
    server = SocketMode()
    slack.app_token, slack.socket_url = APP_TOKEN, server.url
    yield server
    server.close()


@pytest.fixture
def acting_bot(slack):
    return SlackBot(
        slack.token, slack.channel, base_url=slack.url, sleep=lambda _: None, can_act=True
    )


@pytest.fixture
def warned(database):
    """A run with an open incident whose message waits for the channel `slack_bot`."""
    with database.write() as session:
        start_run(session, RunStart(run_id="r", name="gpt"), 1.0)
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
        alert = open_alert(
            session,
            run_id="r",
            stream_id=None,
            rule="oom_forecast",
            severity="warning",
            state="firing",
            step=5,
            summary="",
            data={"step": 5},
            now=1.0,
        )
        alert.incident_id = incident.id
        add_transition(
            session,
            alert,
            from_state="pending",
            to_state="firing",
            reason="",
            now=1.0,
            channels=["slack_bot"],
        )
    return database


@pytest.fixture
def dispatcher(warned, acting_bot, clock):
    return Dispatcher(warned, ChannelFilter("slack_bot"), acting_bot, "http://x", clock)


@pytest.fixture
def actions(warned, slack, socket_mode, dispatcher, clock):
    """The connected buttons of a sent warning."""
    assert dispatcher.turn()
    actions = SlackActions(
        warned,
        APP_TOKEN,
        slack.token,
        base_url=slack.url,
        holds=lambda: True,
        refresh=dispatcher.refresh,
        clock=clock,
    )
    actions.turn()
    wait_until(lambda: socket_mode.connections == 1, "the connection")
    yield actions
    actions.close()


def buttons_of(slack) -> dict[str, str]:
    """Return the values of the buttons of the only message that act, by id."""
    elements = slack.roots[0]["blocks"][-1]["elements"]
    return {button["action_id"]: button["value"] for button in elements if "value" in button}


def press(slack, socket_mode, action_id: str) -> None:
    """Press a button of the message, and wait until it's confirmed."""
    envelope = socket_mode.press(action_id, buttons_of(slack)[action_id])
    wait_until(lambda: envelope in socket_mode.confirmed, "the confirmation")


def incident_of(database: Database) -> IncidentRow:
    with database.read() as session:
        return session.scalars(select(IncidentRow)).one()


def test_a_pressed_button_acknowledges_and_the_message_says_who(
    warned, slack, socket_mode, actions
):
    assert set(buttons_of(slack)) == BUTTONS
    press(slack, socket_mode, "memagent-ack")
    assert incident_of(warned).acked_by == "ana (Slack)"
    wait_until(lambda: "Acknowledged by ana (Slack)" in slack.roots[0]["text"], "the edit")
    assert set(buttons_of(slack)) == BUTTONS - {"memagent-ack"}
    with warned.read() as session:
        feedback = session.scalars(select(FeedbackRow)).one()
        assert (feedback.kind, feedback.by) == ("ack", "ana (Slack)")


def test_a_snooze_lasts_an_hour(warned, slack, socket_mode, actions, clock):
    press(slack, socket_mode, "memagent-snooze")
    assert incident_of(warned).snoozed_until == clock.now + 3600.0
    wait_until(
        lambda: "Snoozed until 1970-01-01 01:16 UTC by ana" in slack.roots[0]["text"], "edit"
    )


def test_a_false_alarm_takes_the_buttons_away(warned, slack, socket_mode, actions):
    press(slack, socket_mode, "memagent-false-alarm")
    assert incident_of(warned).false_alarm_at is not None
    wait_until(lambda: "Marked as a false alarm by ana" in slack.roots[0]["text"], "the edit")
    assert buttons_of(slack) == {}


def test_links_are_confirmed_and_change_nothing(warned, slack, socket_mode, actions):
    envelope = socket_mode.press("open", "")
    wait_until(lambda: envelope in socket_mode.confirmed, "the confirmation")
    assert incident_of(warned).acked_at is None


def test_an_alert_that_is_gone_is_answered_to_the_person_alone(warned, slack, socket_mode, actions):
    value = buttons_of(slack)["memagent-ack"]
    with warned.write() as session:
        delete_run(session, "r")
    envelope = socket_mode.press("memagent-ack", value)
    wait_until(lambda: envelope in socket_mode.confirmed, "the confirmation")
    wait_until(lambda: slack.ephemeral, "the reply")
    assert slack.ephemeral[0]["user"] == "U1" and "unknown here" in slack.ephemeral[0]["text"]


def test_an_alert_that_is_over_cannot_be_snoozed(warned, slack, socket_mode, actions):
    with warned.write() as session:
        incident = session.scalars(select(IncidentRow)).one()
        incident.state, incident.closed_at = "averted", 5.0
    press(slack, socket_mode, "memagent-snooze")
    wait_until(lambda: slack.ephemeral, "the reply")
    assert "This alert is over (averted)" in slack.ephemeral[0]["text"]
    assert incident_of(warned).snoozed_until is None


def test_what_could_not_be_stored_is_not_confirmed(
    warned, slack, socket_mode, actions, monkeypatch
):
    def fail(*_args, **_options):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(slack_actions, "handle_incident", fail)
        lost = socket_mode.press("memagent-ack", buttons_of(slack)["memagent-ack"])
        stored = socket_mode.press("open", "")
        wait_until(lambda: stored in socket_mode.confirmed, "the next confirmation")
    assert lost not in socket_mode.confirmed
    press(slack, socket_mode, "memagent-ack")
    assert incident_of(warned).acked_at is not None


def test_a_broken_connection_is_opened_again(warned, slack, socket_mode, actions, clock):
    socket_mode.end()
    wait_until(lambda: not actions.is_connected, "the end of the connection")
    actions.turn()
    assert not actions.is_connected, "not at once"
    clock.now += slack_actions.RETRY_S
    actions.turn()
    wait_until(lambda: socket_mode.connections == 2, "the second connection")
    press(slack, socket_mode, "memagent-ack")
    assert incident_of(warned).acked_at is not None


def test_an_ended_connection_costs_no_processor_time(socket_mode, actions):
    """Slack's client alone reads an ended connection in a busy loop."""
    socket_mode.end()
    wait_until(lambda: not actions.is_connected, "the end of the connection")
    before_s = time.process_time()
    waited = threading.Event()
    waited.wait(1.0)
    assert time.process_time() - before_s < 0.5


def test_slack_may_ask_for_a_new_connection(warned, slack, socket_mode, actions):
    socket_mode.send_text('{"type": "disconnect", "reason": "refresh_requested"}')
    wait_until(lambda: socket_mode.connections == 2, "the second connection")
    press(slack, socket_mode, "memagent-ack")
    assert incident_of(warned).acked_at is not None


def test_a_worker_sends_a_warning_and_hears_of_its_button(
    warned, slack, socket_mode, make_settings
):
    settings = make_settings(
        warned.url,
        slack_bot_token=slack.token,
        slack_channel=slack.channel,
        slack_api_url=slack.url,
        slack_app_token=APP_TOKEN,
    )
    stop = threading.Event()
    thread = threading.Thread(target=worker.run_worker, args=(settings, stop))
    thread.start()
    try:
        wait_until(lambda: slack.roots and socket_mode.connections, "the message, the connection")
        press(slack, socket_mode, "memagent-ack")
        wait_until(lambda: "Acknowledged by ana (Slack)" in slack.roots[0]["text"], "the edit")
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


NONSENSE = (
    "", "[]", "{", '{"type": 7}', '{"type": "interactive"}', "null", "x" * 200_000,
    '{"type": "interactive", "envelope_id": "e", "payload": {"type": "block_actions"}}',
    '{"type": "interactive", "envelope_id": "e", "payload": [' + "[" * 500 + "]" * 500 + "]}",
)  # fmt: skip


def test_nonsense_does_not_end_the_connection(warned, slack, socket_mode, actions):
    for text in NONSENSE:
        socket_mode.send_text(text)
        envelope = socket_mode.press("open", "")
        wait_until(lambda envelope=envelope: envelope in socket_mode.confirmed, text[:60])
    assert socket_mode.connections == 1
    press(slack, socket_mode, "memagent-ack")
    assert incident_of(warned).acked_at is not None


def test_a_worker_that_loses_its_part_disconnects(warned, slack, socket_mode, dispatcher, clock):
    is_ours = True
    actions = SlackActions(
        warned, APP_TOKEN, slack.token, base_url=slack.url, holds=lambda: is_ours,
        refresh=dispatcher.refresh, clock=clock,
    )  # fmt: skip
    actions.turn()
    wait_until(lambda: actions.is_connected, "the connection")
    is_ours = False
    actions.turn()
    assert not actions.is_connected
    actions.close()


def test_a_wrong_token_is_one_sentence_and_pauses_grow(
    warned, slack, socket_mode, dispatcher, clock, caplog
):
    actions = SlackActions(
        warned, "xapp-wrong", slack.token, base_url=slack.url, holds=lambda: True,
        refresh=dispatcher.refresh, clock=clock,
    )  # fmt: skip
    for _ in range(3):
        actions.turn()
        actions.turn()
        clock.now += slack_actions.MAX_RETRY_S
    actions.close()
    waits = [record.args[1] for record in caplog.records if "don't work" in record.msg]
    assert waits == [5.0, 10.0, 20.0]
    assert "check MEMAGENT_SLACK_APP_TOKEN" in caplog.text and "xapp-wrong" not in caplog.text


# the client drops the socket of a failed handshake without closing it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"HTTP/1.1 500 Oops\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: no\r\n\r\n",
        b"\xff\xfe" * 50,
    ],
    ids=["silent", "ended", "refused", "of another key", "nonsense"],
)
def test_a_failed_handshake_is_retried_later(warned, slack, dispatcher, clock, caplog, answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        slack.app_token = APP_TOKEN
        slack.socket_url = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
        peers = []

        def serve() -> None:
            connection, _ = listener.accept()
            peers.append(connection)
            # the client may hang up at the first byte
            with contextlib.suppress(OSError):
                _answer(connection, answer)

        thread = threading.Thread(target=serve)
        thread.start()
        actions = SlackActions(
            warned, APP_TOKEN, slack.token, base_url=slack.url, holds=lambda: True,
            refresh=dispatcher.refresh, clock=clock,
        )  # fmt: skip
        actions.turn()
        thread.join(PATIENCE_S)
        assert not actions.is_connected
        assert "Slack did not accept the connection; retrying in 5 s" in caplog.text
        actions.close()
        for peer in peers:
            peer.close()


def _answer(connection: socket.socket, answer: bytes | None) -> None:
    if answer is not None:
        connection.recv(4096)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)


def test_an_address_without_tls_is_refused(warned, slack, dispatcher):
    connection = slack_actions._Connection(
        APP_TOKEN, slack.token, base_url="https://slack.com/api/"
    )
    slack.app_token = APP_TOKEN
    connection.web_client.base_url = slack.url
    for url in ("ws://evil/", "wss://evil:8443/", "http://evil/"):
        slack.socket_url = url
        with pytest.raises(ValueError, match="no TLS"):
            connection.issue_new_wss_url()
    connection.close()


PAYLOAD = {
    "type": "block_actions",
    "user": {"id": "U1", "username": "ana"},
    "channel": {"id": "C1"},
    "actions": [{"action_id": "memagent-ack", "value": "key"}],
}


def test_the_payload_is_read():
    assert read_action(PAYLOAD) == SlackAction("ack", "key", "ana (Slack)", "U1", "C1")


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "view_submission"}, {"user": None}, {"user": {}}, {"channel": {"id": 7}},
        {"actions": []}, {"actions": [{"action_id": "memagent-ack"}]},
        {"actions": [{"action_id": "ack", "value": "key"}]},
        {"actions": [{"action_id": "memagent-delete", "value": "key"}]},
        {"actions": [{"action_id": "memagent-ack", "value": "k" * 201}]},
        {"actions": [{"action_id": "memagent-ack", "value": ""}]},
    ],
)  # fmt: skip
def test_other_payloads_are_none_of_ours(changes):
    assert read_action({**PAYLOAD, **changes}) is None


def test_a_long_name_fits_its_column():
    action = read_action({**PAYLOAD, "user": {"id": "U1", "username": "a" * 10_000}})
    assert action is not None and len(action.by) <= 200
