"""Garbage collection on the training thread, requested by the forecaster and within a budget."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from memagent.local_forecast import coordinator
from memagent.local_forecast.coordinator import GarbageCollectionRequest


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def clock(monkeypatch):
    """A manual clock, in seconds; a collection takes `clock["collecting"]`."""
    now = {"at": 0.0, "collecting": 0.05}
    collect = gc.collect

    def timed() -> int:
        now["at"] += now["collecting"]
        return collect()

    monkeypatch.setattr(coordinator.time, "monotonic", lambda: now["at"])
    monkeypatch.setattr(coordinator.gc, "collect", timed)
    return now


def test_rule_1_a_request_does_not_wait_for_the_collection():
    gc.disable()
    try:
        cycle = weakref.ref(Cycle())
        gc_request = GarbageCollectionRequest()
        assert gc_request.request() is None and gc_request.is_pending and cycle() is not None
        gc_request.collect()
        assert cycle() is None and not gc_request.is_pending
    finally:
        gc.enable()


def test_rule_2_never_while_a_graph_is_captured(monkeypatch):
    capturing = True
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    gc_request = GarbageCollectionRequest()
    gc_request.request()
    gc_request.collect()
    assert gc_request.is_pending and gc_request.collections == 0
    capturing = False
    gc_request.collect()
    assert not gc_request.is_pending and gc_request.collections == 1


def test_rule_3_collections_take_less_than_a_thousandth_of_the_run(clock):
    gc_request = GarbageCollectionRequest()
    for _ in range(1000):  # a request a second
        clock["at"] += 1.0
        gc_request.request()
        if gc_request.is_pending:
            gc_request.collect()
    assert (
        0.001 * clock["at"] / 0.05 - 1 <= gc_request.collections <= 0.001 * clock["at"] / 0.05 + 1
    )


SAW_TOOTH = """
import gc, time, torch, memagent, weakref
from memagent.probe.host import HostProbe

class Cycle:
    def __init__(self):
        self.me, self.block = self, bytearray(b"x") * 2**22

torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.disable()  # as scripts do that collect at times of their choice
limit = HostProbe().used_bytes() + 800 * 2**20
risks = []
run = memagent.attach(model, optimizer, limit_bytes=limit, total_steps=9999, on_risk=risks.append, predict=False)
first = weakref.ref(Cycle())

def step():
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()

while run.step < 195 and first():
    step()
    Cycle()
    time.sleep(0.02)
time.sleep(0.5)  # the collector publishes the last samples
step()
run.finish()
print(first() is None, risks)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.long
def test_reference_cycles_that_grow_like_a_leak_cause_no_page():
    """A sawtooth: 4 MiB a step until a collection, in a run that would run out of memory by it."""
    done = subprocess.run(
        [sys.executable, "-c", SAW_TOOTH], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True []\n", done.stderr
    assert "Warning" not in done.stderr, "the diagnosis ran no code of the objects it looked at"
