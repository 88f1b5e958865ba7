"""Rate limits of a token: buckets, 429 with Retry-After, and an agent that waits and loses
nothing.
"""

from __future__ import annotations

import pytest

from memagent.delivery.api_client import HttpTransport
from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import seal
from memagent.delivery.run_file import RunFile
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard
from memagent.errors import SettingError
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.app import create_app
from memagent_server.http.credentials import issue_token
from memagent_server.http.rate_limits import BURST_S, Bucket, RateLimits
from memagent_server.http.shared_counters import SharedCounters
from memagent_server.settings import Settings
from memagent_server.store.engine import Database
from tests.waiting import wait_until

ADMIN = "the admin's token, for tests only"


def test_a_bucket_empties_and_refills():
    bucket = Bucket.full(2.0, now=0.0)
    assert [bucket.take(1.0, now=0.0) for _ in range(int(2 * BURST_S))] == [0.0] * 20
    assert bucket.take(1.0, now=0.0) == 0.5
    assert bucket.take(1.0, now=0.5) == 0.0
    assert bucket.take(1.0, now=0.75) == 0.25
    assert bucket.take(20.0, now=1000.0) == 0.0, "it is full, and no more than that"
    assert bucket.take(1.0, now=1000.0) == 0.5


def test_a_request_larger_than_a_bucket_leaves_a_debt():
    bucket = Bucket.full(10.0, now=0.0)
    assert bucket.take(150.0, now=0.0) == 0.0
    assert bucket.take(1.0, now=0.0) == pytest.approx(5.1)
    assert bucket.take(150.0, now=5.0) == pytest.approx(10.0)


def test_a_clock_that_stops_or_goes_back_changes_nothing():
    bucket = Bucket.full(1.0, now=100.0)
    assert bucket.take(10.0, now=100.0) == 0.0
    assert bucket.take(1.0, now=50.0) == 1.0


def test_each_token_has_its_own_bucket():
    limits = RateLimits(1.0, None, SharedCounters("quotas", 2, "secret"), clock=lambda: 100.0)
    assert [limits.take(1, "requests", 1.0) for _ in range(11)][-1] == 1.0
    assert limits.take(2, "requests", 1.0) == 0.0
    assert limits.take(1, "bytes", 1e12) == 0.0, "no quota, no bound"


@pytest.fixture
def limited(sqlite_database, make_settings):
    """limited(**quotas): a client with a token under these quotas."""

    def limited(**quotas):
        settings = make_settings(sqlite_database.url, **quotas)
        with sqlite_database.write() as session:
            token, _ = issue_token(session, settings, name="ci", scope="ingest", now=1.0)
        client = create_app(settings, sqlite_database).test_client()
        return lambda path, body: client.post(
            path, json=body, headers={"Authorization": f"Bearer {token}"}
        )

    return limited


def test_more_requests_than_the_quota_get_429_and_the_time_to_wait(limited):
    post = limited(quota_requests=0.5)
    responses = [post("/api/v1/runs", {"run_id": "r"}) for _ in range(6)]
    assert [response.status_code for response in responses] == [201, 200, 200, 200, 200, 429]
    problem = responses[-1].get_json(force=True)
    assert responses[-1].mimetype == "application/problem+json" and "'ci'" in problem["detail"]
    assert responses[-1].headers["Retry-After"] == "2"


def test_more_bytes_than_the_quota_get_429(limited):
    post = limited(quota_bytes=100)
    assert post("/api/v1/runs", {"run_id": "r", "config": {"text": "x" * 2000}}).status_code == 201
    refused = post("/api/v1/runs", {"run_id": "r"})
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 1


def test_quotas_are_rates_above_zero():
    environ = {"MEMAGENT_DATABASE_URL": "sqlite:////nowhere.db", "MEMAGENT_SECRET_KEY": "k"}
    assert Settings.from_environ(environ).quota_requests is None
    assert (
        Settings.from_environ({**environ, "MEMAGENT_QUOTA_BYTES": "1e6"}).quota_bytes == 1_000_000
    )
    for wrong in ("0", "-1", "many", "inf", "nan"):
        with pytest.raises(SettingError, match="MEMAGENT_QUOTA_REQUESTS"):
            Settings.from_environ({**environ, "MEMAGENT_QUOTA_REQUESTS": wrong})


def test_an_agent_waits_for_retry_after_and_loses_nothing(
    start_server, make_settings, tmp_path, capsys
):
    """Ten requests at once, then one per second: the last ones have to wait."""
    environ = {"MEMAGENT_QUOTA_REQUESTS": "1", "MEMAGENT_ADMIN_TOKEN": ADMIN}
    server = start_server("--role", "web", environ=environ)
    database = Database(server.database_url)
    with database.write() as session:
        token, _ = issue_token(
            session, make_settings(database.url), name="ci", scope="ingest", now=1.0
        )
    database.close()
    transport = HttpTransport(server.url, token)
    drops, replies = DroppedSamples(), []
    start = seal("r", RunStart(run_id="r"))
    sender = Sender(
        RunFile(tmp_path / "r.memagent", start),
        transport,
        drops,
        ErrorGuard(raise_errors=True),
        replies.append,
    )
    sender.start()
    for seq in range(11):
        batch = Batch(seq=seq, chunks=[Chunk(stream="host", columns={"step": [seq]})])
        sender.put(seal("r", batch, samples=1))
    wait_until(lambda: len(replies) == 11)
    sender.close(5.0)
    assert [reply.next_seq for reply in replies] == list(range(1, 12))
    assert not drops, dict(drops)
    assert "has used up its quota of requests" in capsys.readouterr().err, (
        "it was never told to wait"
    )
    run = server.get("/api/v1/runs/r", authorization=f"Bearer {ADMIN}").json
    assert [stream["samples"] for stream in run["streams"]] == [11]
