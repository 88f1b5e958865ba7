"""TraceML and the agent hook the same steps of one process, and both report right values."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.python_fork import ForkServer

pytest.importorskip("traceml_ai", reason="TraceML is not installed: pip install traceml-ai")

STEPS = 40
SCRIPT = """
import json, sys
import torch
import memagent
import traceml_ai

torch.set_num_threads(1)
traceml_ai.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())

def step():
    with traceml_ai.trace_step(model):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).pow(2).mean().backward()
        optimizer.step()

for _ in range(10):
    step()
run = memagent.attach(model, optimizer)
for _ in range({steps}):
    step()
run.finish()
for _ in range(10):
    step()
hooks = [model._forward_pre_hooks, model._forward_hooks, optimizer._optimizer_step_pre_hooks]
print(json.dumps({{"step": run.step, "errors": run.guard.errors, "hooks_left": sum(map(len, hooks))}}))
"""


@pytest.mark.slow
def test_traceml_and_memagent_count_every_step(fork_server, tmp_path, recording):
    script, logs = tmp_path / "train.py", tmp_path / "logs"
    script.write_text(SCRIPT.format(steps=STEPS))
    report = run_under_traceml(fork_server, script, logs)
    assert report == {"step": STEPS, "errors": {}, "hooks_left": 0}

    columns = recording().columns()
    assert columns["step"] == list(range(STEPS + 1))
    assert columns["input_size"] == [None] + [32 * 64] * STEPS
    for phase in ("data", "forward", "backward", "optimizer"):
        assert all(peak > 2**20 for peak in columns[f"phase_{phase}_peak_bytes"][1:])

    sections = json.loads((logs / "both" / "final_summary.json").read_text())["analysis_window"][
        "sections"
    ]
    assert sections["step_time"]["samples"] == sections["step_memory"]["samples"] == STEPS + 20


@pytest.mark.gpu
def test_the_agent_does_not_change_the_peaks_that_traceml_reads(recording):
    """It resets and reads the allocator's peak in each step: the agent must not change it."""
    import torch
    from traceml_ai.instrumentation import step_events
    from traceml_ai.utils.step_memory import StepMemoryTracker

    import memagent

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 8)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(256, 512, device="cuda")
    tracker = StepMemoryTracker(model)

    def traced_peaks() -> list[float | None]:
        results = []
        for _ in range(10):
            tracker.reset()
            optimizer.zero_grad()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            tracker.record()
            results.append(step_events.begin_step_capture().memory_event.peak_allocated)
        return results

    traced_peaks()
    alone = traced_peaks()
    with memagent.attach(model, optimizer):
        with_agent = traced_peaks()
    assert with_agent == alone
    (gpu,) = (device for device in recording().start.devices if device.kind == "cuda")
    columns = recording().columns(stream=gpu.id)
    assert columns["peak_allocated_bytes"][1:] == alone


def run_under_traceml(python: ForkServer, script: Path, logs: Path) -> dict[str, object]:
    """Run `script` as `traceml run` does; return its last line, parsed as JSON."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        aggregator, master = (str(each.getsockname()[1]) for each in (first, second))
    command = ["-m", "traceml_ai.launcher.cli", "run", str(script), "--aggregator-port", aggregator]
    options = ["--master-port", master, "--logs-dir", str(logs), "--run-name", "both"]
    done = python.run(*command, *options, cwd=script.parent)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    output = (logs / "both" / "nodes" / "node_0" / "training.stdout.log").read_text()
    printed: dict[str, object] = json.loads(output.strip().splitlines()[-1])
    return printed
