"""What goes wrong between the outbox and a channel: a run deleted meanwhile, two dispatchers, words that would ring everybody."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from sqlalchemy import func, select

from memagent.wire.messages import RunStart
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.dispatcher import AT_ONCE, LEASE_S, Dispatcher
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.webhook import Webhook
from memagent_server.store.alerts import add_transition, list_alerts, open_alert
from memagent_server.store.models import Notification
from memagent_server.store.outbox import lease_due, mark_failed
from memagent_server.store.runs import delete_run, start_run

KEY = "the key"


@pytest.fixture
def receiver():
    """An HTTP server that answers with the next of `answers`, then with 200, and keeps what it got in `requests`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.requests.append((dict(self.headers), body))
            answer = b'{"ok": true, "ts": "1.2", "channel": "C1"}'
            self.send_response(server.answers.pop(0) if server.answers else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.answers = [], []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def alert(database):
    """alert(run_id, name, states): an alert whose transitions are to be told to the channel `test`."""

    def alert(run_id="r", name="gpt", states=("firing",)):
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, name=name), 1.0)
            opened = open_alert(session, run_id=run_id, stream_id=None, rule="oom_forecast", severity="warning", state="firing",
                                step=5, summary="", data={"step": 5}, now=1.0)  # fmt: skip
            for state in states:
                add_transition(
                    session, opened, from_state="pending", to_state=state, reason="", now=1.0, channels=["test"]
                )

    return alert


class Recording:
    def __init__(self):
        self.told = []

    def send(self, story):
        self.told.append((story.run_id, story.to_state))
        return {}


def test_a_delivery_tried_again_has_the_same_key_and_a_signature_of_its_own_body(database, alert, receiver):
    alert()
    receiver.answers = [500, 503]
    now = 100.0
    dispatcher = Dispatcher(database, {"test": Webhook(receiver.url, KEY)}, "http://x", lambda: now)
    for _ in range(4):
        now += 1000
        dispatcher.turn()
    assert len(receiver.requests) == 3
    assert len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) == 1
    assert [json.loads(body)["is_repeat"] for _, body in receiver.requests] == [False, True, True]
    for headers, body in receiver.requests:
        expected = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
        assert headers["X-Memagent-Signature"] == f"sha256={expected}"


def test_each_transition_has_a_key_of_its_own(database, alert, receiver):
    alert(states=("firing", "averted"))
    dispatcher = Dispatcher(database, {"test": Webhook(receiver.url, KEY)}, "http://x", lambda: 100.0)
    while dispatcher.turn():
        pass
    assert len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) == 2


def test_the_waits_grow_from_seconds_to_minutes(database, alert):
    class Down:
        def send(self, story):
            raise DeliveryFailedError("down")

    alert()
    now, waits = 100.0, []
    dispatcher = Dispatcher(database, {"test": Down()}, "http://x", lambda: now)
    for _ in range(12):
        assert dispatcher.turn()
        with database.read() as session:
            waits.append(session.scalars(select(Notification.next_attempt_at)).one() - now)
        now += waits[-1]
    for number, wait in enumerate(waits):
        assert 0.69 <= wait / min(2.0 * 2**number, 900.0) <= 1.31


def test_a_run_deleted_while_its_message_waits_holds_up_nobody(database, alert):
    alert("gone")
    alert("stays")
    with database.write() as session:
        leased = lease_due(session, 100.0, LEASE_S, AT_ONCE)
        assert [item.attempts for item in leased] == [1, 1]
        for item in leased:
            mark_failed(session, item.id, "", next_attempt_at=100.0)
    channel = Recording()

    class Deleting(Dispatcher):
        def _deliver(self, notification):
            with database.write() as session:
                delete_run(session, "gone")
            super()._deliver(notification)

    Deleting(database, {"test": channel}, "http://x", lambda: 200.0).turn()
    assert channel.told == [("stays", "firing")]


def test_dispatchers_at_the_same_moment_send_each_message_once(database, alert):
    runs = [f"run-{number}" for number in range(12)]
    for run_id in runs:
        alert(run_id, states=("firing", "oom"))
    channel, barrier = Recording(), threading.Barrier(4)

    def work() -> None:
        dispatcher = Dispatcher(database, {"test": channel}, "http://x", lambda: 100.0)
        barrier.wait()
        while dispatcher.turn() or waiting():
            pass

    def waiting() -> int:
        with database.read() as session:
            return session.scalar(select(func.count()).where(Notification.state != "sent")) or 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(channel.told) == sorted((run_id, state) for run_id in runs for state in ("firing", "oom"))
    for run_id in runs:
        assert [state for told, state in channel.told if told == run_id] == ["firing", "oom"]


def test_no_turn_leases_more_than_it_can_send_in_time(database, alert):
    """A Slack bot makes two calls a message, and urllib3 gives ten seconds each to connecting and to reading."""
    for number in range(AT_ONCE + 1):
        alert(f"run-{number}")
    channel = Recording()
    Dispatcher(database, {"test": channel}, "http://x", lambda: 100.0).turn()
    assert len(channel.told) == AT_ONCE
    assert AT_ONCE * 2 * 10.0 < LEASE_S


def test_a_dead_message_is_seen_in_the_list_of_alerts(database, alert, receiver):
    alert()
    receiver.answers = [404]
    secret = receiver.url + "services/T0/B0/secret"
    Dispatcher(database, {"test": SlackWebhook(secret)}, "http://x", lambda: 100.0).turn()
    with database.read() as session:
        (found,) = list_alerts(session)["alerts"][0]["notifications"]
    assert (found["state"], found["attempts"]) == ("dead", 1)
    assert "404" in found["last_error"] and "secret" not in found["last_error"]


@pytest.mark.parametrize("kind", ["webhook", "bot"])
def test_a_name_cannot_ring_the_whole_channel(database, alert, receiver, kind):
    alert(name="<!channel> & co", states=("firing", "oom"))
    channel = SlackWebhook(receiver.url) if kind == "webhook" else SlackBot("xoxb-1", "C1", base_url=receiver.url)
    dispatcher = Dispatcher(database, {"test": channel}, "http://x", lambda: 100.0)
    while dispatcher.turn():
        pass
    texts = [_fields(body)["text"] for _, body in receiver.requests]
    assert len(texts) == (2 if kind == "webhook" else 3)
    for text in texts:
        assert "<!channel>" not in text and "&lt;!channel&gt; &amp; co" in text


def _fields(body: bytes) -> dict[str, str]:
    text = body.decode()
    return json.loads(text) if text.startswith("{") else {name: values[0] for name, values in parse_qs(text).items()}
