"""The agent on a real GPU: exact, invisible, and never synchronising."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

import memagent
from memagent.delivery.run_file import read_frames
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.messages import Batch

pytestmark = pytest.mark.gpu


def columns_of(folder) -> dict[str, list]:
    """All samples of the GPU in the one run file of `folder`."""
    (path,) = folder.glob("*.memagent")
    batches = [decode(body, Batch) for kind, body in read_frames(path) if kind == "batch"]
    chunks = [
        unpack(chunk.packed)
        for batch in batches
        for chunk in batch.chunks
        if chunk.stream.startswith("GPU-")
    ]
    return {
        name: [value for chunk in chunks for value in chunk.get(name, [None] * len(chunk["step"]))]
        for name in dict.fromkeys(name for chunk in chunks for name in chunk)
    }


def life(attach: bool, step, model, optimizer) -> list[tuple[int, int, int]]:
    """What a script sees of its own peaks over ten steps with two resets of its own."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = memagent.attach(model, optimizer) if attach else None
    peaks = []
    for number in range(10):
        step()
        if number == 5:
            del (spike := [torch.empty(2**26, device="cuda")])[:]
        if number in (3, 7):
            torch.cuda.reset_peak_memory_stats()
        peaks.append(
            (
                torch.cuda.max_memory_allocated(),
                torch.cuda.max_memory_reserved(),
                torch.cuda.memory_stats()["active.small_pool.peak"],
            )
        )
    if run is not None:
        run.finish()
        peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), 0))
    return peaks


def test_a_script_sees_the_same_peaks_with_and_without_the_agent(gpu_training):
    model, optimizer, step = gpu_training
    for _ in range(3):
        step()
    bare = life(False, step, model, optimizer)
    watched = life(True, step, model, optimizer)
    assert watched[:-1] == bare
    assert watched[-1][:2] == bare[-1][:2]


def test_phase_peaks_are_exact(gpu_training, clean_run):
    model, optimizer, step = gpu_training
    for _ in range(3):
        step()
    before = torch.cuda.memory_allocated()
    with memagent.attach(model, optimizer) as run:
        step()
        with run.phase("eval"):
            del (block := [torch.empty(2**28, dtype=torch.uint8, device="cuda")])[:]
        loss = step()  # alive, as when the agent reads
    columns = columns_of(clean_run)
    assert columns["allocated_bytes"][-1] == torch.cuda.memory_allocated()
    spike = columns["phase_eval_peak_bytes"][-1] - before
    assert 2**28 <= spike < 2**28 + 2**21
    assert columns["phase_forward_peak_bytes"][-1] < columns["phase_backward_peak_bytes"][-1]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_nothing_synchronises(gpu_training):
    model, optimizer, step = gpu_training
    losses = []
    with memagent.attach(model, optimizer) as run:
        step()
        try:
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(20):
                loss = step()
                run.log({"loss": loss.detach()})
                losses.append(loss)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert run.step == 21 and run.guard.errors == {}


def test_neither_import_nor_attach_of_a_cpu_model_initialises_cuda():
    code = """
        import torch, memagent
        model = torch.nn.Linear(4, 4)
        run = memagent.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run.finish()
        assert not torch.cuda.is_initialized()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)


def test_an_out_of_memory_leaves_an_event_with_the_requested_size(clean_run):
    code = """
        import torch, memagent
        torch.cuda.set_per_process_memory_fraction(0.05)
        model = torch.nn.Linear(4096, 4096).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        memagent.attach(model, optimizer)
        kept = []
        while True:
            model(torch.ones(8, 4096, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
            kept.append(torch.empty(2**27, dtype=torch.uint8, device="cuda"))
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 1 and "OutOfMemoryError" in process.stderr
    (path,) = clean_run.glob("*.memagent")
    batches = [decode(body, Batch) for kind, body in read_frames(path) if kind == "batch"]
    (event,) = [event for batch in batches for event in batch.events if event.kind == "oom"]
    assert event.data["asked_bytes"] == 2**27 and event.data["free_bytes"] is not None
    assert event.data["largest_tensors"][0]["size_bytes"] == 2**27


def test_a_captured_graph_is_not_hooked_and_is_still_counted(gpu_training, clean_run):
    model, optimizer, step = gpu_training
    graph = torch.cuda.CUDAGraph()
    static = torch.randn(256, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        model(static)
    torch.cuda.current_stream().wait_stream(side)
    with memagent.attach(model, optimizer) as run:
        step()
        with torch.cuda.graph(graph), torch.no_grad():
            model(static)
        graph.replay()
        step()
    assert run.step == 2 and run.guard.errors == {}
