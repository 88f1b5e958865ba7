"""What fires together is one message with a list: in Slack, Discord, Teams and mail."""

from __future__ import annotations

from email import message_from_bytes
from email.policy import default as default_policy

import pytest
from sqlalchemy import select

from memagent.wire.messages import RunStart
from memagent_server.notify.discord import Discord
from memagent_server.notify.dispatcher import FOLD_S, LEASE_S, Dispatcher
from memagent_server.notify.email import Email
from memagent_server.notify.message_text import MAX_FOLDED_LINES
from memagent_server.notify.slack_webhook import SlackWebhook
from memagent_server.notify.teams import Teams
from memagent_server.notify.webhook import Webhook
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.models import NotificationRow
from memagent_server.store.runs import start_run
from tests.server.notify.far_ends import ANSWERS, HttpService, MailService

KINDS = {
    "slack_webhook": lambda url: SlackWebhook(url, allow_local=True, sleep=lambda _: None),
    "discord": lambda url: Discord(url, allow_local=True),
    "teams": lambda url: Teams(url, allow_local=True),
    "email": lambda url: Email(url, "memagent@example.org", ("ana@example.org",)),
    "webhook": lambda url: Webhook(url, None, allow_local=True),
}


class Outbox:
    """Alerts that wait for one channel, a dispatcher with a clock, and the server behind it."""

    def __init__(self, database, kind):
        self.database, self.kind, self.now = database, kind, 1000.0
        self.service = MailService() if kind == "email" else HttpService()
        self.channel = KINDS[kind](self.service.url)
        self.start_dispatcher()

    def start_dispatcher(self):
        route = ChannelFilter(self.kind)
        self.dispatcher = Dispatcher(
            self.database, route, self.channel, "http://box", lambda: self.now
        )

    def fire(self, *names, project="nlp", rule="oom_forecast", state="firing"):
        with self.database.write() as session:
            for name in names:
                start_run(session, RunStart(run_id=name, name=name, project=project), 1.0)
                alert = open_alert(session, run_id=name, stream_id=None, rule=rule, severity="warning",
                                   state=state, step=5, summary="", data={"step": 5}, now=self.now)  # fmt: skip
                add_transition(session, alert, from_state="pending", to_state=state, reason="",
                               now=self.now, channels=[self.kind])  # fmt: skip

    def send(self):
        """Run turns until nothing is due; return the texts of what arrived meanwhile."""
        before = len(self.service.messages)
        while self.dispatcher.turn():
            pass
        return [text_of(content) for content in self.service.messages[before:]]

    def states(self):
        with self.database.read() as session:
            rows = session.scalars(select(NotificationRow).order_by(NotificationRow.id))
            return [(row.state, row.attempts) for row in rows]


def text_of(content):
    """The text of a mail, or the body of a request."""
    if content.startswith(b"{"):
        return content.decode()
    mail = message_from_bytes(content, policy=default_policy)
    return f"{mail['Subject']}\n{mail.get_body().get_content()}"


@pytest.fixture
def outbox(database, kind):
    outbox = Outbox(database, kind)
    yield outbox
    outbox.service.close()


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
slack = pytest.mark.parametrize("kind", ["slack_webhook"])


@slack
def test_a_hundred_runs_that_fire_together_are_two_messages(outbox):
    names = [f"run-{number:03}" for number in range(100)]
    outbox.fire(*names[:1])
    (first,) = outbox.send()
    assert "run-000 will run out of memory" in first, "at once"
    for start in range(1, 100, 33):
        outbox.now += 2.0
        outbox.fire(*names[start : start + 33])
        assert outbox.send() == []
    outbox.now = 1000.0 + FOLD_S
    (folded,) = outbox.send()
    assert "99 runs of nlp: oom forecast, new alerts" in folded
    listed = [name for name in names if f"http://box/runs/{name}" in folded]
    assert listed == names[1 : 1 + MAX_FOLDED_LINES]
    assert f"and {99 - MAX_FOLDED_LINES} more" in folded and "http://box/alerts" in folded
    assert outbox.states() == [("sent", 1)] * 100


@on_sqlite
@pytest.mark.parametrize("kind", ["slack_webhook", "discord", "teams", "email"])
def test_each_channel_of_people_lists_the_runs(outbox):
    outbox.fire("a", "b", "c", state="lost_contact")
    (folded,) = outbox.send()
    assert "3 runs of nlp: oom forecast, fell silent" in folded.replace("\\\\", "")
    assert all(f"http://box/runs/{name}" in folded for name in "abc")
    outbox.fire("d", "e", state="lost_contact")
    assert outbox.send() == []
    outbox.now += FOLD_S
    (folded,) = outbox.send()
    assert "2 runs of nlp" in folded


@on_sqlite
@pytest.mark.parametrize("kind", ["webhook"])
def test_services_that_group_by_themselves_get_each_message(outbox):
    outbox.fire("a", "b", "c")
    assert len(outbox.send()) == 3


@slack
@on_sqlite
def test_other_projects_rules_and_states_do_not_wait(outbox):
    outbox.fire("a")
    outbox.fire("b", project="vision")
    outbox.fire("c", rule="a rule of later")
    outbox.fire("d", state="oom")
    assert len(outbox.send()) == 4


@slack
@on_sqlite
def test_a_run_whose_facts_are_missing_is_listed_by_its_rule(outbox):
    outbox.fire("a", "b", rule="fragmentation")
    (folded,) = outbox.send()
    assert "a: fragmentation" in folded and "b: fragmentation" in folded


@slack
@on_sqlite
def test_a_failed_message_fails_for_all_and_is_sent_again_for_all(outbox):
    outbox.fire("a", "b")
    outbox.service.fault = "is busy"
    assert outbox.send() == []
    assert outbox.states() == [("waiting", 1)] * 2
    outbox.service.fault = ANSWERS
    outbox.now += 60.0
    (folded,) = outbox.send()
    assert "2 runs of nlp" in folded and "may repeat" in folded
    assert outbox.states() == [("sent", 2)] * 2


@slack
@on_sqlite
def test_a_message_that_was_interrupted_is_sent_again_with_all_its_runs(outbox):
    class Killed(BaseException):
        pass

    class Dying(SlackWebhook):
        def send(self, message):
            super().send(message)
            raise Killed

    outbox.channel = Dying(outbox.service.url, allow_local=True, sleep=lambda _: None)
    outbox.start_dispatcher()
    outbox.fire("a", "b")
    with pytest.raises(Killed):
        outbox.send()
    assert outbox.states() == [("leased", 1)] * 2
    outbox.channel = KINDS["slack_webhook"](outbox.service.url)
    outbox.start_dispatcher()
    outbox.fire("c")
    outbox.now += LEASE_S
    (repeated,) = outbox.send()
    assert "3 runs of nlp" in repeated and "may repeat" in repeated


def test_slacks_webhook_gets_at_most_one_message_a_second(make_message):
    service, waits = HttpService(), []
    channel = SlackWebhook(service.url, allow_local=True, sleep=waits.append)
    for number in range(3):
        channel.send(make_message(dedup_key=str(number)))
    service.close()
    assert len(waits) == 2 and all(0.0 < wait_s <= 1.0 for wait_s in waits)
