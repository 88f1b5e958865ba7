"""One rank of a distributed model, on torch's fake process group."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from memagent.errors import TraceError
from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.real_steps import retained_bytes

RANKS, ROWS = 4, torch.ones(8, 256)
WEIGHTS = 4 * (256 * 256 + 256) * 4


@pytest.fixture(autouse=True)
def group():
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    distributed.destroy_process_group()


def net() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))


def test_it_counts_ddp_s_buckets_in_addition_to_the_gradients():
    plain = record_trace(net, ROWS).summary()
    spread = record_trace(nn.parallel.DistributedDataParallel(net()), ROWS).summary()
    assert spread.peak_bytes - plain.peak_bytes == WEIGHTS
    assert spread.components["gradients"] == 2 * plain.components["gradients"]


def test_it_counts_no_buckets_if_gradients_are_views_of_them():
    plain = record_trace(net, ROWS).summary()
    spread = record_trace(
        nn.parallel.DistributedDataParallel(net(), gradient_as_bucket_view=True), ROWS
    ).summary()
    assert spread.peak_bytes == plain.peak_bytes


def test_buckets_stay_between_steps_if_gradients_are_views_of_them():
    spread = record_trace(
        nn.parallel.DistributedDataParallel(net(), gradient_as_bucket_view=True), ROWS
    )
    assert retained_bytes(spread) - retained_bytes(record_trace(net, ROWS)) == WEIGHTS


def test_buckets_hold_whole_parameters_and_close_at_their_size():
    wide = nn.parallel.DistributedDataParallel(
        nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
    )
    trace = record_trace(wide, torch.ones(1, 1024))
    sizes_mib = [
        e.size_bytes >> 20
        for e in trace.events
        if e.kind == "alloc" and e.module == "DistributedDataParallel"
    ]
    assert sizes_mib == [4, 28]  # MiB: the first is full at 1, the next at 25


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_it_traces_one_rank_of_fsdp2(device):
    mesh = init_device_mesh(device, (RANKS,))

    def sharded() -> nn.Module:
        model = net()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    trace = record_trace(sharded, ROWS, device=device)

    allocations = [
        event for event in trace.events if event.kind == "alloc" and event.component == "parameters"
    ]
    assert sum(event.size_bytes for event in allocations) == WEIGHTS // RANKS
    state = retained_bytes(trace) - WEIGHTS // RANKS
    assert state >= 2 * WEIGHTS // RANKS
    gathered = trace.summary().phase_peak_bytes["forward"] - retained_bytes(trace)
    assert WEIGHTS // 4 <= gathered <= WEIGHTS  # one to all layers are gathered at a time


def test_it_says_how_to_trace_a_model_that_is_sharded_already():
    mesh = init_device_mesh("cpu", (RANKS,))
    with pytest.raises(TraceError, match="pass a callable that builds it"):
        record_trace(fully_shard(net(), mesh=mesh), ROWS)
