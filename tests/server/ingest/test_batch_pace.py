"""A busy server requests batches of calm ranks less often."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from memagent.delivery import collector as collecting
from memagent.delivery.api_client import HttpTransport
from memagent.delivery.buffer import DroppedSamples, SampleBuffer
from memagent.delivery.collector import Collector
from memagent.delivery.envelope import seal
from memagent.delivery.run_file import RunFile
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard
from memagent.wire.messages import MAX_BATCH_EVERY_S, Risk, RunStart
from memagent_server.ingest import batch_pace
from memagent_server.ingest.batch_pace import ADJUST_S, BUSY_SHARE, JITTER, BatchPace
from tests.waiting import wait_until

CALM = Risk(level="ok")


class Machine:
    """A process's clocks."""

    def __init__(self):
        self.now = self.used = 0.0

    def work(self, seconds, share):
        self.now += seconds
        self.used += share * seconds


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def pace(machine):
    return BatchPace(lambda: machine.now, lambda: machine.used)


def saturate(machine, pace):
    for _ in range(8):
        machine.work(2 * MAX_BATCH_EVERY_S, 1.0)
        pace.interval_of(CALM)


def test_a_process_with_time_left_requests_batches_every_second(machine, pace):
    for _ in range(10):
        machine.work(ADJUST_S, 0.9 * BUSY_SHARE)
        assert pace.interval_of(CALM) == pace.interval_of(None) == 1.0


def test_a_busy_process_requests_fewer_by_a_factor_of_two_at_a_time(machine, pace):
    machine.work(ADJUST_S, 1.0)
    assert 2 * (1 - JITTER) <= pace.interval_of(CALM) <= 2 and pace.interval_s == 2
    machine.work(ADJUST_S - 0.1, 1.0)
    pace.interval_of(CALM)
    assert pace.interval_s == 2, "agents have yet to get the last change"
    saturate(machine, pace)
    assert pace.interval_s == MAX_BATCH_EVERY_S


def test_the_interval_falls_with_the_load(machine, pace):
    saturate(machine, pace)
    machine.work(2 * MAX_BATCH_EVERY_S, BUSY_SHARE)
    pace.interval_of(CALM)
    assert pace.interval_s == MAX_BATCH_EVERY_S, "it's where it should be"
    for _ in range(8):
        machine.work(2 * MAX_BATCH_EVERY_S, 0.0)
        pace.interval_of(CALM)
    assert pace.interval_s == 1.0


@pytest.mark.parametrize("level", ["notice", "warning", "critical"])
def test_a_rank_at_risk_sends_every_second(machine, pace, level):
    saturate(machine, pace)
    assert pace.interval_of(Risk(level=level)) == 1.0
    assert pace.interval_of(CALM) > 20


def test_intervals_vary(machine, pace):
    saturate(machine, pace)
    assert len({pace.interval_of(CALM) for _ in range(50)}) > 10


@pytest.fixture
def busy_server(start_server, database_url):
    program = str(Path(__file__).with_name("serve_busy.py"))
    environ = {"MEMAGENT_DATABASE_URL": database_url}
    return start_server("--role", "web", environ=environ, program=(program,))


@pytest.fixture
def agent(busy_server, tmp_path, monkeypatch):
    """A collector and a sender to the busy server. An agent that doesn't obey sends at each tick."""
    monkeypatch.setattr(collecting, "TICK_S", 0.02)
    monkeypatch.setattr(collecting, "CALM_TICK_S", 0.02)
    monkeypatch.setattr(collecting, "BATCH_EVERY_S", 0.0)
    monkeypatch.setattr(collecting, "CALM_BATCH_EVERY_S", 0.0)
    drops, guard = DroppedSamples(), ErrorGuard(raise_errors=True)
    agent = SimpleNamespace(buffer=SampleBuffer("host", ("step",), drops), time_left_s=math.inf)
    file = RunFile(tmp_path / "r.memagent", seal("r", RunStart(run_id="r")))
    transport = HttpTransport(busy_server.url, None)
    sender = Sender(
        file, transport, drops, guard, lambda reply: collector.set_interval(reply.batch_every_s)
    )
    agent.observed = []
    agent.collector = collector = Collector(
        "r",
        0,
        0,
        [agent.buffer],
        sender,
        drops,
        guard,
        observe=lambda _, columns: agent.observed.extend(columns["step"]),
        refresh=lambda _: None,
        time_left_s=lambda: agent.time_left_s,
    )
    sender.start()
    collector.start()
    yield agent
    collector.close()
    sender.close(5.0)


def test_an_agent_obeys_until_it_is_at_risk(busy_server, agent):
    def samples():
        run = busy_server.get("/api/v1/runs/r")
        return sum(one["samples"] for one in run.json["streams"]) if run.status == 200 else 0

    agent.buffer.append(((0,), None))
    wait_until(lambda: agent.collector._requested_s > 20, "the reply")
    before = samples()
    for step in range(1, 6):
        agent.buffer.append(((step,), None))
        wait_until(lambda step=step: step in agent.observed, "a tick")
    assert samples() == before == 1
    agent.time_left_s = 0.0
    wait_until(lambda: samples() == 6, "a batch at once")


def test_the_reply_and_the_page_say_so(app, monkeypatch):
    client = app.test_client()
    client.post("/api/v1/runs", json={"run_id": "r"})
    page = client.get("/runs/r").get_data(as_text=True)
    assert "the server is busy" not in page
    assert client.post("/api/v1/runs/r/batches", json={"seq": 0}).get_json()["batch_every_s"] == 1
    pace = BatchPace()
    pace.interval_s = 20.0
    app.extensions[batch_pace.EXTENSION] = pace
    reply = client.post("/api/v1/runs/r/batches", json={"seq": 1}).get_json()
    assert 16 <= reply["batch_every_s"] <= 20
    page = client.get("/runs/r").get_data(as_text=True)
    assert "the server is busy: calm ranks send every 20&nbsp;s" in page
