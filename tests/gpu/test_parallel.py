"""The agent beside DDP, FSDP2, torch.compile and expandable segments, on one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

import memagent
from tests.gpu.test_agent import columns_of

pytestmark = pytest.mark.gpu
STEPS = 4


@pytest.fixture
def group():
    """A process group of one rank."""
    distributed.init_process_group("nccl", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


@pytest.fixture
def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()


def train(model: nn.Module, folder) -> dict[str, list]:
    """Train with the agent, which counts each step without an error. Return its readings."""
    optimizer = torch.optim.AdamW(model.parameters())
    with memagent.attach(model, optimizer, predict=False) as run:
        for _ in range(STEPS):
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.step == STEPS and run.guard.errors == {}
    return columns_of(folder)


def has_phases(columns: dict[str, list]) -> bool:
    peaks = [columns[f"phase_{name}_peak_bytes"][-1] for name in ("forward", "backward")]
    return all(peak > torch.cuda.memory_allocated() for peak in peaks)


def test_ddp_trains_with_phases(group, layers, clean_run):
    model = nn.parallel.DistributedDataParallel(layers, device_ids=[0])
    assert has_phases(train(model, clean_run))


def test_fsdp2_trains_with_phases(group, layers, clean_run):
    for layer in layers:
        fully_shard(layer)
    assert has_phases(train(fully_shard(layers), clean_run))


# Inductor of torch 2.11 imports a module that uses torch.jit
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_compiled_code_trains_with_phases(layers, clean_run):
    assert has_phases(train(torch.compile(layers), clean_run))


def test_expandable_segments_are_counted(clean_run):
    code = """
        import torch, memagent
        model = torch.nn.Linear(4096, 4096).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with memagent.attach(model, optimizer, predict=False) as run:
            for _ in range(3):
                model(torch.ones(8, 4096, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        segments = torch.cuda.memory_snapshot()
        assert any(segment["is_expandable"] for segment in segments)
        assert run.guard.errors == {}
        print(torch.cuda.max_memory_reserved())
    """
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    reserved = [value for value in columns_of(clean_run)["reserved_bytes"] if value is not None]
    assert max(reserved) == int(ended.stdout)
