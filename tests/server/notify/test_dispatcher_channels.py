"""Every channel through outbox, dispatcher, database and a real server of its kind."""

from __future__ import annotations

from email import message_from_bytes
from email.policy import default as default_policy
from types import SimpleNamespace

import pytest
from sqlalchemy import select, text

from memagent.wire.messages import RunStart
from memagent_server.notify import CHANNELS, email, http_client
from memagent_server.notify.alertmanager import Alertmanager
from memagent_server.notify.discord import Discord
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.notify.email import Email
from memagent_server.notify.grafana import Grafana
from memagent_server.notify.pagerduty import PagerDuty
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.teams import Teams
from memagent_server.notify.webhook import Webhook
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.models import NotificationRow
from memagent_server.store.outbox import MAX_ATTEMPTS
from memagent_server.store.runs import start_run
from tests.scripted_server import ScriptedServer, drip, read_request
from tests.server.notify.far_ends import (
    ANSWERS,
    FAULTS,
    LIES,
    RETRY_AFTER_S,
    HttpService,
    MailService,
)

KINDS = {
    "slack_webhook": lambda url: SlackWebhook(url, allow_local=True, sleep=lambda _: None),
    "slack_bot": lambda url: SlackBot("xoxb-1", "C1", base_url=url + "/", sleep=lambda _: None),
    "webhook": lambda url: Webhook(url, "secret key", allow_local=True),
    "email": lambda url: Email(url, "memagent@example.org", ("ana@example.org",)),
    "pagerduty": lambda url: PagerDuty("routing key", url=url),
    "alertmanager": lambda url: Alertmanager(url),
    "discord": lambda url: Discord(url, allow_local=True),
    "teams": lambda url: Teams(url, allow_local=True),
    "grafana": lambda url: Grafana(url, "glsa_token"),
}
READS_RESPONSES = ("slack_bot", "grafana")
"""Channels that need the content of a response, not only its status."""
every_channel = pytest.mark.parametrize("kind", KINDS)


class Delivery:
    """Two changes of one alert that wait for a channel, and the server that it leads to."""

    def __init__(self, database, kind: str, service) -> None:
        self.database = database
        self.kind = kind
        self.service = service
        self.now = 100.0
        with database.write() as session:
            start_run(session, RunStart(run_id="r"), 1.0)
            alert = open_alert(session, run_id="r", stream_id=None, rule="oom_forecast", severity="warning", state="firing",
                               step=5, summary="", data={"step": 5}, now=1.0)  # fmt: skip
            for before, after in (("pending", "firing"), ("firing", "oom")):
                add_transition(session, alert, from_state=before, to_state=after, reason="",
                               now=1.0, channels=[kind])  # fmt: skip

    def turn(self, fault: str) -> NotificationRow:
        """Run a turn of a new dispatcher long after the last; return the older notification."""
        self.service.fault = fault
        self.now += 3_000.0
        channel = KINDS[self.kind](self.service.url)
        assert Dispatcher(
            self.database, ChannelFilter(self.kind), channel, "http://x", lambda: self.now
        ).turn()
        return self.rows()[0]

    def rows(self) -> list[NotificationRow]:
        with self.database.read() as session:
            return list(session.scalars(select(NotificationRow).order_by(NotificationRow.id)))


@pytest.fixture
def delivery(database, kind):
    service = MailService() if kind == "email" else HttpService()
    delivery = Delivery(database, kind, service)
    yield delivery
    delivery.service.close()


def test_it_covers_every_channel():
    assert set(KINDS) == set(CHANNELS)


@every_channel
def test_each_failure_counts_as_an_attempt_until_the_server_answers(delivery, kind, monkeypatch):
    for attempts, fault in enumerate(FAULTS, 1):
        with monkeypatch.context() as patch:
            if fault == "hangs":
                for module in (http_client, email):
                    patch.setattr(module, "TIMEOUT_S", 0.2)
            first = delivery.turn(fault)
        assert (first.state, first.attempts) == ("waiting", attempts) and first.last_error
    if kind != "email":
        assert first.next_attempt_at >= delivery.now + RETRY_AFTER_S
    assert delivery.service.messages == []
    first = delivery.turn(ANSWERS)
    assert (first.state, first.attempts, first.last_error) == ("sent", len(FAULTS) + 1, None)
    delivery.turn(ANSWERS)
    assert [row.state for row in delivery.rows()] == ["sent", "sent"]


@pytest.mark.parametrize("kind", ["slack_webhook", "discord", "teams", "webhook", "email"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_second_copy_says_that_it_may_be_a_repeat(delivery, kind):
    delivery.turn("resets")
    delivery.turn(ANSWERS)
    delivery.turn(ANSWERS)
    repeated, first_copy = map(_plain, delivery.service.messages)
    assert "This may repeat an earlier message" in repeated
    assert "This may repeat an earlier message" not in first_copy


def _plain(content: bytes) -> str:
    """The text of a mail, or the body of a request."""
    if content.startswith(b"{"):
        return content.decode()
    return message_from_bytes(content, policy=default_policy).get_body().get_content()


@every_channel
@pytest.mark.parametrize("lie", LIES)
def test_a_lying_response_leads_to_no_endless_repeats(delivery, kind, lie):
    first = delivery.turn(lie)
    if kind not in READS_RESPONSES:
        assert first.state == "sent" and len(delivery.service.messages) == 1
        return
    while first.state == "waiting":
        first = delivery.turn(lie)
    assert 1 <= len(delivery.service.messages) <= first.attempts <= MAX_ATTEMPTS
    assert first.state == "sent" or (first.state == "dead" and first.last_error)


@every_channel
def test_a_message_that_left_and_cannot_be_marked_is_dead_and_not_repeated(delivery, kind):
    """The database refuses the mark alone, as if a receipt could not be stored."""
    refuse_marks(delivery.database)
    first = delivery.turn(ANSWERS)
    assert (first.state, first.attempts) == ("dead", 1) and "it was sent" in first.last_error
    assert len(delivery.service.messages) == 1
    delivery.turn(ANSWERS)
    assert [row.state for row in delivery.rows()] == ["dead", "dead"]


def refuse_marks(database) -> None:
    """Make the database refuse every `UPDATE notifications SET state = 'sent'`."""
    if database.is_sqlite:
        refusal = """CREATE TRIGGER refuse BEFORE UPDATE ON notifications WHEN NEW.state = 'sent'
                     BEGIN SELECT RAISE(ABORT, 'refused'); END"""
    else:
        refusal = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
                     AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
                     CREATE TRIGGER refuse BEFORE UPDATE ON notifications FOR EACH ROW
                     WHEN (NEW.state = 'sent') EXECUTE FUNCTION refuse()"""
    with database.write() as session:
        session.execute(text(refusal))


@every_channel
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_server_that_drips_is_cut_off_and_counts_as_an_attempt(delivery, kind, monkeypatch):
    for module in (http_client, email):
        monkeypatch.setattr(module, "EXCHANGE_TIMEOUT_S", 0.5)
    dripping = ScriptedServer(drip_greeting if kind == "email" else drip_status)
    delivery.service.close()
    scheme = "smtp" if kind == "email" else "http"
    delivery.service = SimpleNamespace(
        url=f"{scheme}://127.0.0.1:{dripping.address[1]}", close=dripping.close
    )
    first = delivery.turn("drips")
    assert (first.state, first.attempts) == ("waiting", 1)
    assert "could not be reached" in first.last_error


def drip_status(connection):
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 ")
    drip(connection, b"OK", b'\r\nContent-Length: 11\r\n\r\n{"ok": true}')


def drip_greeting(connection):
    drip(connection, b"220-hello\r\n", b"")
