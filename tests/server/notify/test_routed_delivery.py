"""Routes through worker, outbox and dispatcher to real servers: HTTP and SMTP."""

from __future__ import annotations

import pytest

from memagent_server.schemas.routing import Route
from memagent_server.settings.channels import NamedChannel
from memagent_server.store.routes import replace_routes
from memagent_server.worker import Worker
from tests.server.alerts.conftest import Bench
from tests.server.notify.far_ends import MailService


@pytest.fixture
def mails():
    service = MailService()
    yield service
    service.close()


def leak(step: int) -> float:
    return 10 + 0.02 * step


def test_each_project_reaches_its_own_address(database, make_settings, receiver, mails):
    settings = make_settings(
        database.url,
        allow_local_webhooks=True,
        smtp_url=mails.url,
        email_from="memagent@example.org",
        email_to=("ops@example.org",),
        channels=(
            NamedChannel("vision", "webhook", f"{receiver.url}/vision"),
            NamedChannel("nlp", "webhook", f"{receiver.url}/nlp"),
        ),
    )
    with database.write() as session:
        routes = [
            Route(name="critical", severity="critical", channels=("email",), goes_on=True),
            Route(name="vision", projects=("vision",), channels=("vision",)),
            Route(name="nlp", tags=("nlp",), channels=("nlp",)),
        ]
        replace_routes(session, routes)
    bench = Bench(database, settings)
    bench.start("a", project="vision")
    bench.start("b", project="other", tags=["nlp"])
    for seq in range(13):
        for run_id in "ab":
            bench.feed(100 * seq, 100 * seq + 100, leak, seq=seq, run_id=run_id)
    for run_id in "ab":
        bench.finish("oom", 1300, run_id)
    worker = Worker(database, settings, lambda: bench.now, steady=lambda: bench.now)
    while worker.turn():
        bench.now += 60
    sent = [
        (path, receiver.payload(number)["run_id"])
        for number, (path, *_) in enumerate(receiver.requests)
    ]
    assert {(path, run_id) for path, run_id in sent} == {("/vision", "a"), ("/nlp", "b")}
    assert receiver.payload(-1)["to_state"] == "oom"
    assert mails.messages and all(b"ops@example.org" in mail for mail in mails.messages)
