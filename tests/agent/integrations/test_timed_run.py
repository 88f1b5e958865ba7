"""Scripts without an optimizer are sampled by time, until they have one."""

from __future__ import annotations

import pytest
import torch

from memagent.cli.run import Recorder
from memagent.integrations import timed_run
from memagent.lifecycle.registry import newest_run
from memagent.settings import Settings
from tests.waiting import wait_until


@pytest.fixture
def recorder(clean_settings, monkeypatch):
    monkeypatch.setattr(timed_run, "START_AFTER_S", 0.01)
    monkeypatch.setattr(timed_run, "PERIOD_S", 0.01)
    monkeypatch.setattr("memagent.lifecycle.registry._newest", None)
    recorder = Recorder(Settings.from_environ())
    recorder.begin()
    yield recorder
    recorder.timed.stop()
    recorder.auto.remove()
    if (run := newest_run()) is not None:
        run.finish()


def test_each_tick_is_a_step_with_a_sample(recorder, recording):
    wait_until(lambda: newest_run() is not None and newest_run().step >= 3)
    run = recorder.end()
    run.finish()
    steps = recording().columns()["step"]
    assert steps == list(range(run.step + 1)) and run.step >= 3
    assert recording().columns()["allocated_bytes"][-1] > 0


def test_the_first_optimizer_takes_over_the_id(recorder, capsys):
    wait_until(lambda: newest_run() is not None and newest_run().step >= 1)
    timed = newest_run()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    assert timed.status == "retired" and newest_run().id == timed.id
    assert recorder.end() is newest_run() and newest_run().step == 3
    assert capsys.readouterr().err.count("is recorded to") == 1
