"""`attach` on real trainings, recorded to a file."""

from __future__ import annotations

import copy
import io
import sys
import threading
import time
from contextlib import suppress

import pytest
import torch

import memagent
from memagent.errors import SettingError
from memagent.null_run import NullRun
from memagent.run import Run
from tests.waiting import wait_until


def test_every_optimizer_step_leaves_one_sample_and_attach_one_at_step_zero(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        for _ in range(25):
            step()
    columns = recording().columns()
    assert columns["step"] == list(range(26)) and run.step == 25
    assert all(used > 2**20 for used in columns["allocated_bytes"])
    assert all(
        peak >= used
        for peak, used in zip(
            columns["peak_allocated_bytes"], columns["allocated_bytes"], strict=True
        )
    )
    assert columns["input_size"] == [None] + [32 * 64] * 25
    assert recording().finish.status == "completed" and recording().finish.step == 25


def test_the_run_start_describes_user_run_and_host(training, recording):
    model, optimizer, step = training
    with memagent.attach(
        model,
        optimizer,
        project="p",
        name="n",
        tags=["a"],
        config={"lr": 1, "api_key": "x"},
        total_steps=9,
    ):
        step()
    start = recording().start
    assert (start.project, start.name, start.tags, start.total_steps) == ("p", "n", ["a"], 9)
    assert start.config == {"lr": 1, "api_key": "***"}
    assert start.environment["torch"] == torch.__version__ and start.environment["command"]
    assert [device.kind for device in start.devices][-1] == "host" and start.devices[
        -1
    ].limit_bytes > 2**20


def test_components_are_exact_once_the_optimizer_has_its_state(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer):
        step()
        step()
    columns = recording().columns()
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert columns["parameters_bytes"][-1] == columns["gradients_bytes"][-1] == parameters
    assert columns["optimizer_state_bytes"][0] == 0
    assert 2 * parameters <= columns["optimizer_state_bytes"][-1] <= 2 * parameters + 100


def test_the_prediction_is_recorded(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        step()
        wait_until(lambda: run.prediction and not run.prediction.is_bound)
    (prediction,) = recording().predictions
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert prediction.method == "trace" and prediction.components["parameters"] == parameters
    assert prediction.components["optimizer_state"] >= 2 * parameters
    for peak in (prediction.peak_allocated_bytes, run.prediction.peak_allocated_bytes):
        assert peak >= 4 * parameters


def test_phases_have_peaks_and_users_add_phases(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        step()
        with run.phase("eval"):
            block = torch.ones(64 * 2**20)
            del block
        with run.phase("checkpoint"):
            retained = torch.ones(64 * 2**20)
            with run.phase("inner"):
                pass
            del retained
        step()
    columns = recording().columns()
    assert [event.step for event in recording().events if event.kind == "checkpoint"] == [1]
    for phase in ("forward", "backward", "optimizer"):
        assert columns[f"phase_{phase}_peak_bytes"][-1] > 2**20
    assert columns["phase_inner_peak_bytes"][-1] - columns["allocated_bytes"][1] > 200 * 2**20


def test_forwards_in_eval_mode_are_the_eval_phase(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer):
        step()
        model.eval()
        with torch.no_grad():
            model(torch.randn(1000, 64))
        model.train()
        step()
    columns = recording().columns()
    assert columns["phase_eval_peak_bytes"] == [None, None, columns["phase_eval_peak_bytes"][-1]]
    assert columns["input_size"][-1] == 32 * 64


def test_without_phases_only_the_optimizer_is_hooked(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, phases=False):
        assert not model._forward_hooks and not model._forward_pre_hooks
        step()
    assert recording().columns()["step"] == [0, 1]


def test_gradient_accumulation_counts_optimizer_steps(training, recording):
    model, optimizer, _ = training
    with memagent.attach(model, optimizer):
        for _ in range(3):
            for _ in range(4):
                model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    columns = recording().columns()
    assert columns["step"] == [0, 1, 2, 3] and columns["input_size"][1:] == [4 * 32 * 64] * 3


def test_every_samples_some_steps_and_keeps_the_peaks_between(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, every=5) as run:
        for number in range(10):
            step()
            if number == 6:
                with run.phase("spike"):
                    block = torch.ones(64 * 2**20)
                    with run.phase("inside"):
                        del block
    columns = recording().columns()
    assert columns["step"] == [0, 5, 10]
    assert columns["peak_allocated_bytes"][2] - columns["allocated_bytes"][2] > 200 * 2**20


def test_several_optimizers_count_the_first_ones_steps(recording):
    models = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with memagent.attach(models, optimizers) as run:
        for number in range(6):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.randn(2, 4)).sum().backward()
                if model is models[1] or number % 2 == 0:
                    optimizer.step()
        assert run.step == 3


def test_a_second_attach_to_an_optimizer_ends_the_first_run(training, recording, capsys):
    model, optimizer, step = training
    first = memagent.attach(model, optimizer)
    step()
    second = memagent.attach(model, optimizer)
    step()
    assert (first.status, first.step, second.status, second.step) == ("completed", 1, "running", 1)
    assert f"run {first.id} is finished: a new run replaces it" in capsys.readouterr().err
    other = torch.nn.Linear(2, 2)
    third = memagent.attach(other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert (second.status, third.status) == ("running", "running")
    second.finish()
    third.finish()


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
cell = '''
import torch, memagent
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
runs = [*globals().get("runs", ()), memagent.attach(model, optimizer)]
'''
for _ in range(2):
    shell.run_cell(cell).raise_error()
print(*(run.status for run in shell.user_ns["runs"]))
"""


def test_a_cell_that_runs_twice_leaves_one_run_running(fork_server, clean_settings):
    process = fork_server.run("-c", NOTEBOOK)
    assert process.stdout.splitlines()[-1:] == ["completed running"], process.stderr


def test_a_run_shorter_than_a_refresh_has_the_slow_columns(training, recording, monkeypatch):
    monkeypatch.setattr("memagent.delivery.collector.REFRESH_S", 3600.0)
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        host = run._pipeline.sampler.tracks[-1].probe
        while host._slow_values[0] is None:
            time.sleep(0.01)
        step()
    assert recording().columns()["host_pss_bytes"][-1] > 0


def test_lbfgs_closures_are_one_step(recording):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(3, 4)) - 1).pow(2).mean()
        loss.backward()
        return loss

    with memagent.attach(model, optimizer) as run:
        optimizer.step(closure)
        optimizer.step(closure)
        assert run.step == 2


def test_scalars_are_recorded_at_their_step(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        for _ in range(3):
            run.log({"loss": step(), "lr": 0.1, "cache_bytes": 1.5})
        run.log({"final": float("nan")}, step=99)
    columns = recording().columns("scalars")
    assert columns["step"] == [1, 2, 3, 99]
    assert columns["lr"] == [0.1] * 3 + [None] and columns["cache_bytes"][0] == 1.5
    assert (
        all(isinstance(loss, float) for loss in columns["loss"][:3])
        and columns["final"][3] != columns["final"][3]
    )


def test_an_invalid_scalar_is_reported_and_the_others_are_logged(training, recording):
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    with pytest.raises(SettingError, match="'text' \\(str\\)"):
        run.log({"loss": 1.0, "text": "hello"})
    run.finish()
    assert recording().columns("scalars")["loss"] == [1.0]


def test_finish_leaves_no_hook_and_no_thread(training, recording):
    model, optimizer, step = training
    before = {thread.name for thread in threading.enumerate()}
    run = memagent.attach(model, optimizer)
    step()
    run.finish()
    run.finish()
    step()
    assert run.step == 1
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    # the thread that waits for signals ends as it reads that its pipe is closed
    wait_until(
        lambda: {thread.name for thread in threading.enumerate()} <= before, "the end of threads"
    )


def test_disabled_leaves_nothing_behind(training, clean_settings, monkeypatch):
    monkeypatch.setenv("MEMAGENT_DISABLED", "1")
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run, run.phase("eval"):
        step()
        run.log({"loss": 1.0})
    assert not model._forward_hooks and not clean_settings.exists()


def test_the_null_run_has_the_interface_of_a_run():
    assert {name for name in dir(Run) if name[0] != "_"} - set(dir(NullRun)) == {
        "abandon",
        "monitors",
        "retire",
        "tick",
    }


def test_a_monitored_model_can_be_copied_and_saved(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        step()
        twin = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        for other in (twin, loaded):
            other(torch.randn(2, 64))
        assert run.step == 1
    assert recording().columns()["step"] == [0, 1]


def test_a_compiled_model_stays_one_graph_and_every_step_counts(training, recording):
    model, _, _ = training
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(compiled, optimizer):
        for _ in range(8):
            compiled(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(graphs) == 1
    assert recording().columns()["input_size"] == [None] + [32 * 64] * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": object()}, "got a object"),
        ({"model": None}, "model is None"),
        ({"optimizer": "adam"}, "got a str"),
        ({"optimizer": []}, "optimizer is \\[\\]"),
        ({"total_steps": 0}, "total_steps must be .* got 0"),
        ({"total_steps": "ten"}, "total_steps must be .* got 'ten'"),
        ({"total_steps": float("nan")}, "total_steps must be .* got nan"),
        ({"tags": "one"}, "tags must be a list of strings"),
        ({"tags": ["x" * 201]}, "too long"),
        ({"name": 5}, "name must be a string, got 5"),
        ({"model": torch.nn.Linear}, "got a type"),
        ({"optimizer": torch.optim.SGD}, "got a type"),
        ({"limit_bytes": "plenty"}, "24GiB"),
        ({"server": "localhost"}, "http"),
        ({"mirror": "aim"}, "Unknown mirror 'aim': pass wandb, mlflow, tensorboard"),
        ({"mirror": ["tensorboard", 5]}, "mirror cannot be a int"),
    ],
)
def test_it_rejects_invalid_arguments_before_any_hook(training, arguments, message):
    model, optimizer, _ = training
    values = {"model": model, "optimizer": optimizer, **arguments}
    with pytest.raises(SettingError, match=message):
        memagent.attach(values.pop("model"), values.pop("optimizer"), **values)
    assert not model._forward_hooks and not optimizer._optimizer_step_post_hooks


def test_probe_events_get_the_step(training, recording, monkeypatch):
    from memagent.probe.host import HostProbe
    from memagent.wire.messages import Event

    probe_events: list[list[Event]] = []
    monkeypatch.setattr(
        HostProbe, "take_events", lambda probe: probe_events.pop() if probe_events else []
    )
    model, optimizer, step = training
    with memagent.attach(model, optimizer):
        step()
        step()
        probe_events.append([Event(kind="oom_kill", time_s=5.0, data={"processes": 1})])
    (event,) = recording().events
    assert (event.kind, event.step, event.data) == ("oom_kill", 2, {"processes": 1})


def test_an_unmonitored_device_is_reported_once(training, monkeypatch, capsys):
    from memagent.components import Components

    elsewhere = {"cuda:0": Components(1, 1, 1, 1), "cpu": Components(1, 1, 1, 1)}
    monkeypatch.setattr(
        "memagent.hooks.instrumentation.measure_by_device", lambda *_, **__: elsewhere
    )
    model, optimizer, step = training
    with memagent.attach(model, optimizer):
        step()
        step()
    stderr = capsys.readouterr().err
    assert (
        stderr.count(
            "Tensors found on cuda:0, which is not monitored. Call memagent.attach() after"
        )
        == 1
    )


def test_arguments_are_converted_to_what_the_server_accepts(training, recording):
    model, optimizer, _ = training
    memagent.attach(model, optimizer, total_steps=312.5, tags=("a", 7)).finish()
    assert recording().start.total_steps == 313 and recording().start.tags == ["a", "7"]


def test_invalid_unicode_is_recorded_as_far_as_possible(training, recording, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "caf\udce9.csv"])
    model, optimizer, _ = training
    memagent.attach(model, optimizer, config={"data": "caf\udce9"}).finish(
        "failed", error="caf\udce9"
    )
    assert recording().start.config == {"data": "caf?"} and recording().finish.error == "caf?"


@pytest.mark.parametrize("name", ["eval!", "x" * 200])
def test_an_invalid_phase_name_is_reported_and_the_script_continues(
    training, recording, monkeypatch, capsys, name
):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    for _ in range(3):
        with run.phase(name):
            step()
    run.finish()
    assert capsys.readouterr().err.count("is not a valid phase name") == 1
    assert recording().columns()["step"] == [0, 1, 2, 3]


def test_an_invalid_status_ends_the_run_as_failed(training, recording, monkeypatch, capsys):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer, _ = training
    memagent.attach(model, optimizer).finish("crashed")
    assert "use completed, stopped, failed, oom" in capsys.readouterr().err
    assert (recording().finish.status, recording().finish.error) == (
        "failed",
        "finished with the status 'crashed'",
    )


def test_finish_in_a_signal_handler_during_finish_does_not_wait(training, recording):
    model, optimizer, _ = training
    run = memagent.attach(model, optimizer)
    assert run._finish_lock.acquire(blocking=False)  # as in the middle of a finish
    run.finish("failed")
    run._finish_lock.release()
    run.finish()
    assert recording().finish.status == "completed"


def test_a_caught_error_does_not_set_the_phase_of_the_next(training, recording):
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    step()
    with suppress(KeyError), run.phase("eval"):
        raise KeyError("caught")
    with suppress(RuntimeError):
        try:
            torch.empty(2**50)
        except RuntimeError as error:
            run.fail_with(error)
            raise
    (event,) = recording().events
    assert event.data["phase"] == "data"


def test_an_error_belongs_to_the_innermost_phase_that_it_left(training, recording):
    model, optimizer, _ = training
    run = memagent.attach(model, optimizer)
    try:
        with run.phase("eval"), run.phase("checkpoint"):
            torch.empty(2**50)
    except RuntimeError as error:
        with suppress(KeyError), run.phase("eval"):
            raise KeyError("while tidying up") from None
        run.fail_with(error)
    events = {event.kind: event.data for event in recording().events}
    assert events["oom"]["phase"] == "checkpoint"
    assert "checkpoint" not in events  # it was not written


def test_it_does_not_read_gradients_that_another_thread_may_write(recording):
    def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )
        return model, torch.optim.AdamW(model.parameters())

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(100):
            model(torch.randn(8, 16)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    networks = [network() for _ in range(4)]
    with memagent.attach(*map(list, zip(*networks, strict=True))):
        train(*networks[0])
        threads = [threading.Thread(target=train, args=pair) for pair in networks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    columns = recording().columns()
    assert columns["step"] == list(range(201))
    assert columns["gradients_bytes"][50] == sum(p.numel() * 4 for p in networks[0][0].parameters())
    assert columns["gradients_bytes"][-1] is None and columns["parameters_bytes"][-1] > 0


def test_it_does_not_read_gradients_of_an_optimizer_before_its_first_step(training, recording):
    model, optimizer, step = training
    other = torch.nn.Linear(64, 64)
    other(torch.randn(1, 64)).sum().backward()
    second = torch.optim.SGD(other.parameters())
    with memagent.attach([model, other], [optimizer, second]):
        step()
        second.step()
        step()
    own = sum(p.numel() * 4 for p in model.parameters())
    assert recording().columns()["gradients_bytes"] == [0, own, own + 4 * 64 * 65]


def test_a_failed_evaluation_does_not_extend_the_eval_phase(training, recording):
    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        model.eval()
        with suppress(RuntimeError):
            model(torch.randn(1, 3))
        model(torch.randn(1, 64))
        assert run._pipeline.sampler.phase == "data"
        model.train()
        step()


class Careful(torch.optim.SGD):
    """torch wraps this `step` with hooks, and the one that it calls too."""

    def step(self, closure=None):
        if not all(p.grad is not None for group in self.param_groups for p in group["params"]):
            raise ValueError("no gradients")
        return super().step(closure)


def test_a_step_that_calls_super_counts_once(training, recording):
    model, _, _ = training
    optimizer = Careful(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer) as run:
        for _ in range(3):
            with suppress(ValueError):
                optimizer.step()
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert run.step == 3
    assert recording().columns()["step"] == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_steps_of_a_scripted_model_count(recording):
    model = torch.jit.script(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memagent.attach(model, optimizer):
        for _ in range(3):
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
    assert recording().columns()["step"] == [0, 1, 2, 3]
