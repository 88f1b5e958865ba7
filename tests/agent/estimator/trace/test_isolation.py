"""A trace doesn't change its process, ends in time, and reports failures."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest
import torch
from torch import nn

from memagent.errors import TraceError
from memagent.estimator.trace.events import MemoryEvent
from memagent.estimator.trace.session import CPU, CUDA, CUDA_ON_CPU, TraceJob
from memagent.estimator.trace.tracing import record_trace, trace_in_fork, trace_in_interpreter
from tests.agent.estimator.trace.models import mlp

ROWS = torch.ones(32, 64)


def test_it_changes_nothing_in_the_calling_process():
    model, rows = mlp(), torch.ones(32, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()

    record_trace(model, rows, optimizer=optimizer)

    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    assert type(model[0].weight.data) is torch.Tensor


def test_it_traces_in_a_process_that_has_run_backward_and_has_threads():
    mlp()(ROWS).sum().backward()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert record_trace(mlp, ROWS).device_rules == "cuda"
    finally:
        stop.set()
        thread.join()


def test_it_leaves_no_process_running():
    before = {child.pid for child in psutil.Process().children()}  # other tests may have left some
    record_trace(mlp, ROWS)
    assert {child.pid for child in psutil.Process().children()} <= before


class Slow(nn.Linear):
    def forward(self, rows):
        time.sleep(30)
        return super().forward(rows)


def test_it_aborts_at_the_timeout():
    with pytest.raises(TraceError, match=r"not done after 0\.5 s"):
        record_trace(Slow(64, 64), ROWS, timeout_s=0.5)


class Greedy(nn.Linear):
    def forward(self, rows):
        self.buffers = [bytearray(1 << 20) for _ in range(300)]
        for _ in range(300):
            rows = rows + 1
        return super().forward(rows)


def test_it_aborts_when_it_takes_too_much_memory():
    with pytest.raises(TraceError, match="more than 64 MiB"):
        record_trace(Greedy(64, 64), ROWS, limit_growth_bytes=64 << 20)


def test_it_aborts_when_building_the_model_takes_too_much_memory():
    def build():
        buffers = [bytearray(b"x" * (1 << 20)) for _ in range(400)]
        time.sleep(1)
        return nn.Linear(64, 64 + len(buffers) - len(buffers))

    with pytest.raises(TraceError, match="more than 100 MiB"):
        record_trace(build, ROWS, limit_growth_bytes=100 << 20)


class Asking(nn.Linear):
    def forward(self, rows):
        return super().forward(rows) if rows.sum().item() > 0 else rows


def test_it_names_the_operator_of_an_unknown_value():
    with pytest.raises(TraceError, match="aten::sum") as caught:
        record_trace(Asking(64, 64), ROWS)
    assert caught.value.op.startswith("aten::sum")


class Repeating(nn.Linear):
    def forward(self, rows):
        return super().forward(rows).repeat_interleave((9 * rows[:, 0]).long(), dim=0)


def test_it_names_the_operator_whose_shape_depends_on_data():
    with pytest.raises(TraceError) as caught:
        record_trace(Repeating(64, 64), ROWS)
    assert caught.value.op == "aten.repeat_interleave.Tensor"
    assert "depends on the tensors' values" in str(caught.value)


class Failing(nn.Linear):
    def forward(self, rows):
        raise ValueError(f"no {super().forward(rows).shape[1]} classes")


def test_it_reports_a_failure_of_the_model():
    with pytest.raises(TraceError, match="failed at aten::addmm: ValueError: no 64 classes"):
        record_trace(Failing(64, 64), ROWS)


class Dying(nn.Linear):
    def forward(self, rows):
        os.abort()


def test_it_survives_a_crash_of_the_tracing_process():
    with pytest.raises(TraceError, match="SIGABRT"):
        record_trace(Dying(64, 64), ROWS)


class Noisy(nn.Linear):
    def forward(self, rows):
        print("something")
        return super().forward(rows)


def test_it_hides_the_output_of_the_model(capfd):
    record_trace(Noisy(64, 64), ROWS)
    assert capfd.readouterr() == ("", "")


def test_it_takes_shapes_and_dtypes_for_inputs():
    assert record_trace(mlp, ((32, 64), "float32")).summary() == record_trace(mlp, ROWS).summary()


def test_it_builds_a_model_from_a_file(tmp_path):
    script = tmp_path / "build.py"
    script.write_text("from torch import nn\ndef model():\n    return nn.Linear(64, 64)\n")
    trace = record_trace(f"{script}:model", ((32, 64), "float32"))
    assert trace.parameters == 64 * 65


def test_it_says_which_file_or_name_is_missing(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        record_trace("nowhere.py:model", ROWS)
    script = tmp_path / "empty.py"
    script.write_text("")
    with pytest.raises(TraceError, match="no callable 'model'"):
        record_trace(f"{script}:model", ROWS)


def test_it_traces_in_a_new_interpreter(tmp_path):
    script = tmp_path / "build.py"
    script.write_text("from torch import nn\ndef model():\n    return nn.Linear(64, 64)\n")
    inputs = ((32, 64), "float32")
    fresh = trace_in_interpreter(
        TraceJob(f"{script}:model", inputs, device_rules=CUDA), timeout_s=60
    )
    assert fresh.summary() == record_trace(f"{script}:model", inputs).summary()


def test_it_sends_a_live_model_by_shape_to_a_new_interpreter():
    model = mlp()
    model[2].weight = nn.Parameter(torch.zeros(10, 128))
    model.append(nn.Linear(10, 10, bias=False))
    model.append(nn.Linear(10, 10, bias=False))
    model[4].weight = model[3].weight  # tied
    optimizer = torch.optim.AdamW(model.parameters())
    job = TraceJob(model, ROWS, optimizer=optimizer, device_rules=CUDA)
    assert (
        trace_in_interpreter(job, timeout_s=60).summary()
        == record_trace(model, ROWS, optimizer=optimizer).summary()
    )


def test_it_reports_a_model_that_cannot_be_sent():
    with pytest.raises(TraceError, match=r"path\.py:factory"):
        trace_in_interpreter(TraceJob(lambda: mlp(), ROWS), timeout_s=60)


def test_it_traces_with_cpu_tensors_without_fake_cuda():
    stand_in = trace_in_fork(TraceJob(mlp, ROWS, device_rules=CUDA_ON_CPU), timeout_s=60)
    cuda = record_trace(mlp, ROWS)
    assert stand_in.notes != cuda.notes
    assert (
        stand_in.summary().phase_peak_bytes["backward"]
        - cuda.summary().phase_peak_bytes["backward"]
        == 4 * 4
    )
    assert trace_in_fork(TraceJob(mlp, ROWS, device_rules=CPU), timeout_s=60).device_rules == "cpu"


def test_its_events_have_the_fields_of_a_replay():
    events = record_trace(mlp, ROWS).events
    assert all(isinstance(event, MemoryEvent) for event in events)
    assert [event.index for event in events] == list(range(len(events)))
    alive: dict[int, int] = {}
    for event in events:
        if event.kind == "alloc":
            assert event.storage not in alive
            alive[event.storage] = event.size_bytes
        else:
            assert alive.pop(event.storage) == event.size_bytes
