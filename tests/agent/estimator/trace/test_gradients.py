"""In-place sums of gradients, compared with torch's profiler, which needs no dispatch mode."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from memagent.estimator.trace.gradients import GradientSums
from memagent.estimator.trace.recorder import StorageRecorder
from memagent.estimator.trace.tracing import record_trace

ROWS, WIDTH = 256, 256
ONE = ROWS * WIDTH * 4


class Uses(nn.Module):
    """Uses a tensor eight times, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH, bias=False)
        self.way = way

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(rows)
        if self.way == "hooked":
            hidden.register_hook(lambda gradient: gradient + gradient)
        if self.way == "transposed":
            return sum((hidden.t() * float(times)).sum() for times in range(8))
        if self.way == "same gradient":
            return sum((hidden for _ in range(8)), torch.zeros_like(hidden)).sum()
        return sum((hidden * float(times)).sum() for times in range(8))


def backward_growth(way: str, *, profiled: bool) -> int:
    """Return the bytes at the peak of backward minus those at its start."""
    model, rows = Uses(way), torch.ones(ROWS, WIDTH)
    model(rows).backward()  # creates the weight's gradient
    if not profiled:
        recorder = StorageRecorder("cpu")
        with recorder:
            loss = model(rows)
            before = recorder.live_bytes()
            recorder.phase = "backward"
            loss.backward()
        changes = [
            event.size_bytes if event.kind == "alloc" else -event.size_bytes
            for event in recorder.events()
            if event.phase == "backward"
        ]
        assert recorder.live_bytes() == before + sum(changes)
        return max(itertools.accumulate(changes))
    loss = model(rows)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss.backward()
    events = profiler.profiler.kineto_results.events()
    reported = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return max(itertools.accumulate(size for _, size in reported))


@pytest.mark.parametrize("way", ["multiplied", "transposed", "hooked", "same gradient"])
def test_the_recorder_agrees_with_the_profiler(way):
    counted, profiled = backward_growth(way, profiled=False), backward_growth(way, profiled=True)
    assert abs(counted - profiled) < ONE // 8
    assert counted >= ONE


@pytest.mark.parametrize("way", ["multiplied", "transposed", "hooked", "same gradient"])
def test_the_trace_agrees_with_the_recorder(way):
    def largest(trace):
        live = peak = start = 0
        for event in trace.events:
            live += event.size_bytes if event.kind == "alloc" else -event.size_bytes
            if event.step == 1 and event.phase == "backward":
                peak = max(peak, live)
            elif event.step == 1:
                start = live
        return peak - start

    trace = record_trace(lambda: Uses(way), torch.ones(ROWS, WIDTH), optimizer=None, device="cpu")
    assert abs(largest(trace) - backward_growth(way, profiled=True)) < ONE // 8


def test_an_addition_of_the_script_never_runs_in_place():
    sums = GradientSums()
    values = torch.ones(4)
    with torch.no_grad():
        assert not sums.is_in_place((values, values))
        assert not sums.is_in_place((torch.ones(4), torch.ones(4)))
        assert not sums.is_in_place((torch.ones(4), 1.0))
