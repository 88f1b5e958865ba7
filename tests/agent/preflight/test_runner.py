"""Preflights of real models: what they measure, and that they change nothing of the training."""

from __future__ import annotations

import random
import sys
import threading
import time

import numpy
import pytest
import torch

import memagent
from memagent.estimator.estimate import Estimate
from memagent.preflight import PreflightRequest
from memagent.preflight.runner import PeakMonitor, run_preflight
from memagent.preflight.tasks import is_sharded
from memagent.probe.host import HostProbe

MIB = 2**20


class Net(torch.nn.Module):
    """Uses batch norm and dropout, counts forwards in a buffer, allocates `width` floats a sample."""

    def __init__(self, width: int = 2**16) -> None:
        super().__init__()
        self.norm, self.drop, self.head = (
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(),
            torch.nn.Linear(8, 4),
        )
        self.width, self.while_held = width, lambda: None
        self.register_buffer("forwards", torch.zeros(()))
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x, mask=None, targets=None):
        self.forwards += 1
        self.last = x[:1, 0].detach()
        self.call = (mask is not None, targets is not None, self.training, torch.is_grad_enabled())
        wide = torch.ones(len(x), self.width)
        self.while_held()
        return self.head(self.drop(self.norm(x))) * wide.sum(1, keepdim=True)


@pytest.fixture
def until_polled(monkeypatch):
    """Wait for a poll: on a busy machine memory may come and go between two of them."""
    looks, look = 0, PeakMonitor._update

    def counted(watch):
        nonlocal looks
        look(watch)
        looks += 1

    def wait():
        enough = looks + 2  # the next one may have read already
        while looks < enough and any(
            thread.name == "memagent-preflight" for thread in threading.enumerate()
        ):
            time.sleep(0.001)

    monkeypatch.setattr(PeakMonitor, "_update", counted)
    return wait


@pytest.fixture
def net(until_polled):
    torch.manual_seed(0)
    model = Net()
    model.while_held = until_polled
    return model, torch.optim.AdamW(model.parameters())


def try_tasks(model, optimizer, **request):
    return run_preflight(
        PreflightRequest(**{"checkpoint": False, **request}), [HostProbe()], [model], [optimizer]
    )


def test_an_evaluation_is_measured_without_gradients_in_eval_mode(net):
    model, optimizer = net
    result = try_tasks(model, optimizer, eval_batch=torch.randn(512, 8))  # 512 times 2**16 floats
    assert 0.9 * 128 * MIB < result.needs[0].eval_bytes < 1.5 * 128 * MIB
    assert model.call == (False, False, False, False)
    assert result.fits and result.needs[0].limit_bytes and result.trials[0].error is None


def test_it_restores_modes_buffers_and_generators(net):
    model, optimizer = net
    model.drop.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    last, python, state = model.last, random.getstate(), torch.get_rng_state()
    numbers = numpy.random.get_state()[1].copy()

    def evaluate():
        model(torch.randn(16, 8))
        random.random(), numpy.random.rand()

    result = try_tasks(model, optimizer, eval_batch=evaluate, checkpoint=True)
    assert result.trials[1].error is None and model.call[2:] == (
        True,
        True,
    )  # a callable runs as it is
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.last is last
    assert model.training and model.norm.training and not model.drop.training
    assert random.getstate() == python and torch.equal(torch.get_rng_state(), state)
    assert (numpy.random.get_state()[1] == numbers).all()
    assert not optimizer.state and all(parameter.grad is None for parameter in model.parameters())


def test_training_continues_bit_for_bit_as_without_it():
    def weights(option) -> torch.Tensor:
        torch.manual_seed(0)
        model = Net(16)
        optimizer = torch.optim.AdamW(model.parameters())
        with memagent.attach(model, optimizer, preflight=option, predict=False):
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(32, 8)).pow(2).mean().backward()
                optimizer.step()
        return torch.cat([value.flatten() for value in model.state_dict().values()])

    assert torch.equal(weights(None), weights(torch.ones(4, 8)))


@pytest.mark.parametrize(
    ("batch", "call"),
    [
        ((torch.ones(4, 8), torch.ones(4)), (False, False)),
        ({"x": torch.ones(4, 8), "targets": torch.ones(4), "index": 3}, (False, True)),
        ([torch.ones(4, 8)], (False, False)),
    ],
    ids=["what a loader gives", "by name", "one"],
)
def test_it_passes_a_batch_as_forward_takes_it(net, batch, call):
    model, optimizer = net
    assert try_tasks(model, optimizer, eval_batch=batch).trials[0].error is None
    assert model.call[:2] == call


def test_it_passes_targets_too(net):
    class WithLoss(torch.nn.Linear):
        def forward(self, x, targets=None):
            self.call = targets
            return super().forward(x)

    model = WithLoss(8, 4)
    try_tasks(
        model, torch.optim.SGD(model.parameters()), eval_batch=(torch.ones(2, 8), torch.ones(2))
    )
    assert model.call is not None


def test_running_out_of_memory_is_a_result_and_memory_is_released(net):
    model, optimizer = net
    probe = HostProbe()

    def evaluate():
        tensor = torch.ones(64 * MIB)  # 256 MiB
        torch.empty(2**50)
        return tensor

    before = probe.used_bytes()
    result = run_preflight(PreflightRequest(evaluate, False), [probe], [model], [optimizer])
    assert probe.used_bytes() - before < 64 * MIB
    assert result.fits is False and result.trials[0].ran_out and result.needs[0].eval_bytes > 2**50
    assert "at least" in result.verdict()


def test_another_error_is_reported_without_a_size(net):
    model, optimizer = net
    result = try_tasks(model, optimizer, eval_batch=torch.ones(4, 5))
    assert result.needs[0].eval_bytes is None and result.fits is True
    assert "could not be tried: RuntimeError" in result.verdict() and model.training


def test_ctrl_c_passes(net):
    model, optimizer = net

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        try_tasks(model, optimizer, eval_batch=interrupt)
    assert not [thread for thread in threading.enumerate() if thread.name == "memagent-preflight"]


def test_the_optimizers_state_counts_until_it_exists(net):
    model, optimizer = net
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    (need,) = try_tasks(model, optimizer).needs
    assert 2 * parameters <= need.optimizer_state_bytes <= 2 * parameters + 4 * 4
    assert need.gradients_bytes == parameters
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    (need,) = try_tasks(model, optimizer).needs
    assert need.optimizer_state_bytes == need.gradients_bytes == 0


def test_a_step_counts_as_estimated(net):
    model = torch.nn.Linear(2048, 2048)  # 16 MiB
    optimizer = torch.optim.SGD(model.parameters())
    probe = HostProbe()
    probe.context_bytes = probe.used_bytes() - 16 * MIB  # as attach takes it
    (need,) = run_preflight(PreflightRequest(None, False), [probe], [model], [optimizer]).needs
    assert need.step_is_least and 15 * MIB < need.step_bytes < 50 * MIB  # a gradient at least
    estimate = Estimate("trace", probe.used_bytes() + 300 * MIB, {})
    (need,) = run_preflight(
        PreflightRequest(None, False), [probe], [model], [optimizer], prediction=estimate
    ).needs
    assert not need.step_is_least and 290 * MIB < need.step_bytes <= 300 * MIB


def test_it_measures_the_scripts_checkpoint_callable(net, until_polled):
    model, optimizer = net

    def save():
        copies = [torch.ones(32 * MIB) for _ in range(2)]  # as a state_dict on the host
        until_polled()
        del copies

    result = try_tasks(model, optimizer, checkpoint=save)
    assert result.needs[0].checkpoint_bytes > 0.9 * 256 * MIB


def test_it_tries_one_replica_without_the_others(net):
    """The forward of DDP itself would wait for the other ranks."""
    from torch import distributed

    model, optimizer = net
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        wrapped.register_forward_pre_hook(lambda *_: pytest.fail("the wrapper was called"))
        result = try_tasks(
            wrapped, optimizer, eval_batch=(torch.ones(4, 8), torch.ones(4)), checkpoint=True
        )
    finally:
        distributed.destroy_process_group()
    assert [trial.error for trial in result.trials] == [None, None] and model.call[0] is False


def test_it_passes_a_compiled_model_what_its_forward_takes(net):
    model, optimizer = net
    compiled = torch.compile(model, backend="eager")
    assert (
        try_tasks(compiled, optimizer, eval_batch=(torch.ones(4, 8), torch.ones(4))).trials[0].error
        is None
    )
    assert model.call[:2] == (False, False)


def test_it_does_not_try_sharded_models(net):
    model, optimizer = net
    model.head.weight._local_tensor = model.head.weight.data  # as a DTensor has it
    assert is_sharded([model])
    result = try_tasks(model, optimizer, eval_batch=torch.ones(4, 8), checkpoint=True)
    assert all("sharded" in trial.error for trial in result.trials) and model.forwards == 0
    assert try_tasks(model, optimizer, eval_batch=lambda: None).trials[0].error is None


# -- through a run ---------------------------------------------------------------------------------


def test_attach_runs_reports_and_records_it(net, recording, capsys):
    model, optimizer = net
    with memagent.attach(model, optimizer, preflight=torch.randn(512, 8), predict=False):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    result = recording()
    (event,) = [event for event in result.events if event.kind == "preflight"]
    assert (
        event.step == 0
        and event.data["fits"] is True
        and event.data["eval_bytes"]["host"] > 100 * MIB
    )
    assert "memagent: preflight: eval needs 1" in capsys.readouterr().err
    columns = result.columns()
    assert columns["step"] == [0, 1] and columns["phase_preflight_peak_bytes"][1] > MIB


def test_a_run_repeats_it_on_request(net, monkeypatch, capsys):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer = net
    run = memagent.attach(model, optimizer, predict=False)
    assert run.preflight(eval_batch=torch.ones(4, 8)).fits is True
    assert run.preflight(eval_batch="all") is None and "got a str" in capsys.readouterr().err
    run.finish()
    assert run.preflight(eval_batch=torch.ones(4, 8)) is None


def test_a_task_that_will_not_fit_is_a_risk_before_the_first_evaluation(net):
    model, optimizer = net
    risks = []
    limit = HostProbe().used_bytes() + 64 * MIB
    run = memagent.attach(
        model,
        optimizer,
        preflight=torch.randn(1024, 8),
        limit_bytes=limit,
        on_risk=risks.append,
        predict=False,
    )
    deadline = threading.Event()
    for _ in range(200):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        if risks or deadline.wait(0.02):
            break
    run.finish()
    assert risks[0].cause == "eval" and risks[0].level == "warning"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_an_evaluation_beyond_a_real_limit_does_not_end_the_script(fork_server, clean_settings):
    script = """
import resource, torch, memagent
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
run = memagent.attach(model, optimizer, preflight=torch.randn(100_000, 64), predict=False)
for _ in range(3):
    model(torch.randn(8, 64)).sum().backward(); optimizer.step()
result = run.preflight(eval_batch=torch.randn(8, 64))
print("trained", result.fits, result.needs[0].eval_bytes < 2**24)
"""
    done = fork_server.run("-c", script)
    assert done.stdout == "trained True True\n", done.stderr
    assert "this will not fit: eval needs at least 1.5" in done.stderr
