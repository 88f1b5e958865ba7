"""Quiet hours and digests through worker, outbox and channels to real servers: HTTP and SMTP."""

from __future__ import annotations

from datetime import datetime, timezone
from email import message_from_bytes
from email.policy import default as default_policy

import pytest
from sqlalchemy import select

from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.notify import digests
from memagent_server.notify.digests import DigestSender
from memagent_server.schemas.routing import Route
from memagent_server.schemas.schedules import ChannelSchedule
from memagent_server.store.models import DigestRow, NotificationRow
from memagent_server.store.routes import replace_routes
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.schedules import list_digests, put_schedule
from memagent_server.store.waste import WasteSelection, waste
from memagent_server.worker import Worker
from tests.server.alerts.conftest import GIB, Bench
from tests.server.notify.far_ends import MailService

DAY_S = 86_400.0
EIGHT = datetime(2026, 11, 30, 8, tzinfo=timezone.utc).timestamp()
"""A Monday."""
QUIET = ChannelSchedule(quiet_from="00:00", quiet_to="23:59")
BOTH = ChannelSchedule(daily=True, waste_day="monday", digest_at="08:00")


@pytest.fixture
def mails():
    service = MailService()
    yield service
    service.close()


@pytest.fixture
def settings(database, make_settings, receiver, mails):
    return make_settings(
        database.url,
        allow_local_webhooks=True,
        webhook_url=f"{receiver.url}/hook",
        smtp_url=mails.url,
        email_from="memagent@example.org",
        email_to=("leads@example.org",),
    )


def schedule(database, now=0.0, **schedules):
    with database.write() as session:
        for channel, item in schedules.items():
            put_schedule(session, channel, item, now)


def texts(mails) -> list[tuple[str, str]]:
    parsed = [message_from_bytes(mail, policy=default_policy) for mail in mails.messages]
    return [(mail["Subject"].strip(), mail.get_body().get_content()) for mail in parsed]


def leak(step: int) -> float:
    return 10 + 0.02 * step


def states(database) -> list[tuple[str, str]]:
    with database.read() as session:
        rows = session.scalars(select(NotificationRow).order_by(NotificationRow.id))
        return [(row.channel, row.state) for row in rows]


def send_all(bench) -> None:
    while bench.worker.send():
        bench.now += 40


def test_a_warning_waits_for_the_end_of_quiet_hours_and_a_death_does_not(
    database, settings, receiver, mails
):
    schedule(database, email=QUIET)
    bench = Bench(database, settings)
    bench.start("r")
    for seq in range(10):
        bench.feed(100 * seq, 100 * seq + 100, leak, seq=seq)
        bench.worker.evaluate()
    send_all(bench)
    assert states(database) == [("webhook", "sent"), ("email", "waiting")]
    assert mails.messages == [] and receiver.payload()["to_state"] == "firing"
    bench.finish("oom", 1001)
    bench.worker.evaluate()
    send_all(bench)
    assert states(database) == [
        ("webhook", "sent"), ("email", "skipped"), ("webhook", "sent"), ("email", "sent"),
    ]  # fmt: skip
    ((subject, _),) = texts(mails)
    assert "ran out of memory" in subject


def test_what_was_held_is_sent_when_quiet_hours_end(database, settings, mails):
    schedule(database, email=QUIET)
    bench = Bench(database, settings)
    bench.start("r")
    for seq in range(10):
        bench.feed(100 * seq, 100 * seq + 100, leak, seq=seq)
        bench.worker.evaluate()
    send_all(bench)
    assert mails.messages == []
    with database.read() as session:
        held = session.scalars(
            select(NotificationRow.held_until).where(NotificationRow.channel == "email")
        ).one()
    bench.now = held - 1
    send_all(bench)
    assert mails.messages == []
    bench.now = held
    send_all(bench)
    ((subject, text),) = texts(mails)
    assert "out of memory" in subject and "This message waited" in text


def fill(database) -> None:
    """Two runs on a GPU yesterday, of which one died, and one that still runs."""
    gpu = Device(id="GPU-1", kind="cuda", name="NVIDIA H100 80GB HBM3", limit_bytes=80 * GIB)
    began = EIGHT - 10 * 3600
    for run_id, project, status in (
        ("a", "vision", "completed"), ("b", "nlp", "failed"), ("c", "vision", None),
    ):  # fmt: skip
        with database.write() as session:
            message = RunStart(
                run_id=run_id, name=f"run {run_id}", project=project, user="ana", devices=[gpu],
                started_at=began,
            )  # fmt: skip
            start_run(session, message, began)
            columns = {
                "step": [1, 2], "time_s": [began, began + 3600], "allocated_bytes": [GIB, GIB],
                "peak_allocated_bytes": [8 * GIB, 8 * GIB], "reserved_bytes": [8 * GIB, 8 * GIB],
                "limit_bytes": [80 * GIB, 80 * GIB],
            }  # fmt: skip
            chunk = Chunk(stream="GPU-1", columns=columns)
            add_batch(session, run_id, Batch(seq=0, chunks=[chunk]), began + 3600)
            if status:
                finish = Finish(status=status, step=2, error="ValueError: bad")
                finish_run(session, run_id, finish, began + 7200)


def sender(worker, name) -> DigestSender:
    return worker._digests[name]


def test_a_digest_a_day_and_a_week_of_waste_reach_mail_and_webhook_once(
    database, settings, receiver, mails
):
    fill(database)
    schedule(
        database, EIGHT - 3600, email=BOTH, webhook=ChannelSchedule(daily=True, projects=("vis*",))
    )
    now = EIGHT - 1
    worker = Worker(database, settings, lambda: now, steady=lambda: now)
    assert not worker.send()
    for now in (EIGHT, EIGHT + 60, EIGHT + 120):  # noqa: B007 - the worker's clock
        while worker.send():
            pass
    found = dict(texts(mails))
    assert len(mails.messages) == 2 and len(receiver.requests) == 1
    (daily, daily_text), (weekly, weekly_text) = found.items()
    assert daily == "[memagent] The last day: 3 runs started, 1 completed, 1 died, 1 running"
    assert "run b failed" in daily_text and "all projects" in daily_text
    assert weekly == "[memagent] The last week: 89% of the GPU memory was unused"
    assert "ana in vision, NVIDIA H100 80GB HBM3" in weekly_text and "/waste" in weekly_text
    payload = receiver.payload()
    assert payload["to_state"] == "digest" and "2 runs started" in payload["summary"]
    with database.read() as session:
        assert {item.last_error for item in list_digests(session)} == {None}
    now = EIGHT + DAY_S
    assert worker.send() and len(mails.messages) == 3


@pytest.mark.parametrize("projects", [(), ("vision", "nlp")])
def test_the_sums_of_a_weekly_mail_are_of_all_rows(
    database, settings, mails, monkeypatch, projects
):
    monkeypatch.setattr("memagent_server.notify.digests.WASTE_ROWS", 1)
    fill(database)
    weekly = ChannelSchedule(waste_day="monday", digest_at="08:00", projects=projects)
    schedule(database, EIGHT - 3600, email=weekly)
    worker = Worker(database, settings, lambda: EIGHT, steady=lambda: EIGHT)
    assert worker.send()
    with database.read() as session:
        week = WasteSelection(EIGHT - 7 * DAY_S, EIGHT)
        total = waste(session, week, settings.gpu_prices).total
    ((_, text),) = texts(mails)
    assert f"of {total.available_gib_hours:,.0f} GiB-hours in {total.gpu_hours:,.0f}" in text
    assert "and 1 more row" in text.splitlines()


@pytest.mark.parametrize(
    ("routes", "started"),
    [
        ([Route(name="v", projects=("vis*",), channels=("webhook",))], 2),
        ([Route(name="n", projects=("nlp",), channels=("email",))], 3),
        (
            [
                Route(name="v", projects=("vis*",), channels=("webhook",)),
                Route(name="deaths", rules=("oom",), channels=("webhook",)),
            ],
            3,
        ),
    ],
    ids=["of one project", "not of this channel", "of one project and of all"],
)
def test_a_digest_has_the_projects_of_its_channels_routes(
    database, settings, receiver, routes, started
):
    fill(database)
    schedule(database, EIGHT - 3600, webhook=ChannelSchedule(daily=True))
    with database.write() as session:
        replace_routes(session, routes)
    assert Worker(database, settings, lambda: EIGHT, steady=lambda: EIGHT).send()
    payload = receiver.payload()
    assert f"{started} runs started" in payload["summary"]
    assert payload["project"] == ("vis*" if started == 2 else "all projects")


def test_brackets_of_a_project_are_no_pattern(database, settings, receiver):
    fill(database)
    schedule(database, EIGHT - 3600, webhook=ChannelSchedule(daily=True, projects=("[v]ision",)))
    worker = Worker(database, settings, lambda: EIGHT, steady=lambda: EIGHT)
    assert worker.send()
    assert "0 runs started" in receiver.payload()["summary"]


def test_a_failed_digest_is_tried_again_and_then_given_up(database, settings, mails):
    schedule(database, EIGHT - 3600, email=ChannelSchedule(daily=True))
    now = EIGHT
    worker = Worker(database, settings, lambda: now, steady=lambda: now)
    mails.fault = "is busy"
    tries = 0
    while now < EIGHT + DAY_S - 3600:
        tries += sender(worker, "email").turn()
        now += 30
    assert 2 <= tries <= digests.MAX_ATTEMPTS
    with database.read() as session:
        (digest,) = list_digests(session)
        assert digest.sent_at is None and "451" in digest.last_error
    mails.fault = "answers"
    now = EIGHT + DAY_S
    assert sender(worker, "email").turn() and len(mails.messages) == 1


def test_two_workers_send_one_digest(database, settings, mails):
    schedule(database, EIGHT - 3600, email=ChannelSchedule(daily=True))
    workers = [Worker(database, settings, lambda: EIGHT, steady=lambda: EIGHT) for _ in range(2)]
    assert [sender(worker, "email").turn() for worker in workers] == [True, False]
    assert len(mails.messages) == 1


def test_a_worker_that_is_killed_while_it_sends_sends_again(database, settings, mails, monkeypatch):
    schedule(database, EIGHT - 3600, email=ChannelSchedule(daily=True))
    now = EIGHT
    worker = Worker(database, settings, lambda: now, steady=lambda: now)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(digests, "end_digest", die)
        sender(worker, "email").turn()
    again = Worker(database, settings, lambda: now, steady=lambda: now)
    assert not sender(again, "email").turn()
    now += digests.FIRST_RETRY_S
    assert sender(again, "email").turn() or sender(again, "email").turn()
    ids = [message_from_bytes(mail)["Message-ID"] for mail in mails.messages]
    assert len(ids) == 2 and len(set(ids)) == 1


def test_a_schedule_that_is_switched_off_and_on_starts_anew(database):
    schedule(database, 100.0, email=ChannelSchedule(daily=True))
    schedule(database, 200.0, email=ChannelSchedule(daily=True, digest_at="09:00"))
    schedule(database, 300.0, email=ChannelSchedule(daily=True, waste_day="friday"))
    with database.read() as session:
        rows = {row.kind: row.done_until for row in session.scalars(select(DigestRow))}
    assert rows == {"daily": 100.0, "waste": 300.0}
    schedule(database, 400.0, email=ChannelSchedule())
    schedule(database, 500.0, email=ChannelSchedule(daily=True))
    with database.read() as session:
        assert [row.done_until for row in session.scalars(select(DigestRow))] == [500.0]
    schedule(database, 600.0, email=None)
    with database.read() as session:
        assert list_digests(session) == []
