"""Predictions of real runs: the least needed at once, then the trace's or the reason for none."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref

import psutil
import pytest
import torch

import memagent
from memagent.estimator import background
from memagent.estimator.advice import by_trace
from memagent.estimator.trace.isolation import can_fork
from tests.agent.estimator.trace.real_steps import real_trace
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")


def wait_for_answer(run) -> None:
    """Wait until the trace's prediction or the reason for none is there."""
    wait_until(
        lambda: (
            run.prediction
            and (run.prediction.method == "trace" or "trace" in run.prediction.assumptions)
        )
    )


def test_the_trace_of_the_first_inputs_becomes_the_runs_prediction(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        step()
        wait_for_answer(run)
    (trace,) = recording().predictions
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert trace.method == "trace"
    assert trace.components["parameters"] == trace.components["gradients"] == parameters
    assert 2 * parameters <= trace.components["optimizer_state"] <= 2 * parameters + 100
    assert trace.assumptions["inputs"] == [{"shape": [32, 64], "dtype": "float32"}]
    assert trace.assumptions["largest_tensors"][0]["module"] == "0.weight"
    assert run.prediction.peak_allocated_bytes == trace.peak_allocated_bytes > 4 * parameters


def losses(attach: bool) -> tuple[list[float], torch.Tensor]:
    """Four steps of the same training from the same seed, and the random state after them."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.Dropout(0.3), torch.nn.Linear(256, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    run = memagent.attach(model, optimizer) if attach else None
    results = []
    for _ in range(4):
        loss = model(torch.randn(32, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.item())
        if run is not None:
            wait_for_answer(run)
    if run is not None:
        assert run.prediction.method == "trace"
        run.finish()
    assert all(type(parameter.data) is torch.Tensor for parameter in model.parameters())
    return results, torch.get_rng_state()


def test_it_does_not_change_the_training():
    bare, bare_state = losses(attach=False)
    watched, state = losses(attach=True)
    assert watched == bare and torch.equal(state, bare_state)


def test_an_untraceable_model_names_the_operator(recording):
    class Asks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.inner(inputs) * float(inputs.sum())

    model = Asks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer) as run:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        wait_for_answer(run)
    last = run.prediction
    assert last.method == "bound" and "aten::sum" in last.assumptions["trace"]
    assert recording().predictions == [], "older servers would refuse it"


def autocast_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layer = torch.nn.Linear
    return torch.nn.Sequential(
        layer(256, 1024), torch.nn.GELU(), layer(1024, 1024), torch.nn.GELU(), layer(1024, 64)
    )


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_it_predicts_a_script_under_autocast(recording, dtype):
    """Real tensors of the same step, recorded by the same recorder, are the truth."""
    rows = torch.randn(512, 256)
    name = None if dtype is None else "bf16"
    truth = real_trace(autocast_model, rows, autocast=name).summary()
    model = autocast_model()
    optimizer = torch.optim.AdamW(model.parameters())
    with memagent.attach(model, optimizer) as run:
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(rows).mean()
        loss.backward()
        optimizer.step()
        wait_for_answer(run)
    trace = recording().predictions[-1]
    assert trace.assumptions["autocast"] == (name or "none")
    context = trace.components["context"]
    results = {phase: size - context for phase, size in trace.phases.items()}
    assert results == truth.phase_peak_bytes


def test_a_prediction_has_advice_if_memory_is_tight(recording):
    def block():
        return torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)
        )

    model = torch.nn.Sequential(*(block() for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    with memagent.attach(model, optimizer, limit_bytes="1MiB") as run:
        model(torch.randn(4096, 64)).pow(2).mean().backward()
        optimizer.step()
        wait_until(lambda: run.prediction and run.prediction.advice)
    before, trace = recording().predictions
    assert (before.method, before.advice) == (
        "trace",
        [],
    )  # delivered at once; the advice comes later
    assert before.peak_allocated_bytes == trace.peak_allocated_bytes
    changes = {item.change: item.saving_bytes for item in trace.advice}
    assert changes["Activation checkpointing"] > 4 * 2**20
    assert changes["Smaller batch, accumulated"] > 4 * 2**20
    assert [item.saving_bytes for item in trace.advice] == sorted(changes.values(), reverse=True)


def children() -> set[int]:
    """Return the child processes, zombies included; other tests may have left some."""
    return {child.pid for child in psutil.Process().children()}


def test_the_estimate_is_delivered_without_advice_that_takes_too_long(recording, monkeypatch):
    before = children()
    monkeypatch.setattr(background, "ADVICE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(by_trace, "advise", lambda *_, **__: time.sleep(PATIENCE_S))
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    run = memagent.attach(model, optimizer, limit_bytes="1MiB")
    model(torch.randn(4096, 64)).pow(2).mean().backward()
    optimizer.step()
    wait_for_answer(run)
    wait_until(
        lambda: not any(thread.name == "memagent-predict" for thread in threading.enumerate())
    )
    run.finish()
    assert [item.method for item in recording().predictions] == ["trace"]
    assert children() <= before


def test_a_short_run_leaves_no_process_behind(training):
    model, optimizer, step = training
    before = children()
    run = memagent.attach(model, optimizer)
    step()
    run.finish()
    assert children() <= before


def test_a_run_that_ends_before_its_trace_has_the_lower_bound(training, recording, monkeypatch):
    model, optimizer, step = training

    @contextlib.contextmanager
    def wait():
        wait_until(lambda: run._pipeline.estimator._is_closed)
        yield

    monkeypatch.setattr(background, "forks_wait", wait)
    run = memagent.attach(model, optimizer)
    step()
    run.finish()
    assert run.report()["prediction"]["method"] == "bound"
    assert recording().predictions == []


def test_predict_false_traces_nothing(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, predict=False) as run:
        step()
    assert run.prediction is None and recording().predictions == []


def test_several_models_get_a_bound_and_the_reason(training, recording):
    model, optimizer, step = training
    second = torch.nn.Linear(2, 2)
    with memagent.attach([model, second], optimizer) as run:
        step()
        wait_for_answer(run)
    bound = run.prediction
    assert recording().predictions == [] and bound.method == "bound"
    assert bound.assumptions["trace"] == "not traced: several models or optimizers"


def test_a_model_that_is_dropped_at_once_lives_no_longer_and_has_no_prediction(
    recording, monkeypatch
):
    may_go_on = threading.Event()

    @contextlib.contextmanager
    def wait():
        may_go_on.wait()
        yield

    monkeypatch.setattr(background, "forks_wait", wait)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = memagent.attach(model, optimizer)
    model(torch.randn(2, 4)).sum().backward()
    dropped = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert dropped() is None
    may_go_on.set()
    run.finish()
    assert run.prediction is None and recording().predictions == []
