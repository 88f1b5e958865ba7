"""The preflight on a real GPU: exact sizes, memory given back, an out-of-memory survived."""

from __future__ import annotations

import pytest
import torch

import memagent

pytestmark = pytest.mark.gpu
MIB = 2**20


@pytest.fixture
def limited():
    """At most 4 GiB of the GPU for this process."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4 * 2**30 / total))
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_an_evaluation_needs_what_the_allocator_counted(gpu_training):
    model, optimizer, _ = gpu_training
    batch = torch.randn(
        65_536, 1024
    )  # on the host, as a loader gives it: 256 MiB, and twice that within the model
    run = memagent.attach(model, optimizer, preflight=batch, predict=False)
    result = run.preflight(eval_batch=batch)
    used = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model.eval()(batch.cuda())
    run.finish()
    assert result.needs[0].eval_bytes == torch.cuda.max_memory_allocated() - used >= 512 * MIB
    assert result.needs[0].others_bytes > 100 * MIB  # the CUDA context at least


def test_a_preflight_frees_its_memory_and_changes_no_step(gpu_training):
    model, optimizer, step = gpu_training
    step()  # cuBLAS keeps its workspace from the first product on: 32 MiB on Hopper
    state = torch.cuda.get_rng_state()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    run = memagent.attach(model, optimizer, preflight=torch.randn(65_536, 1024), predict=False)
    assert (
        torch.equal(torch.cuda.get_rng_state(), state) and torch.cuda.memory_reserved() == reserved
    )
    step()
    run.finish()


def test_running_out_of_memory_is_reported(gpu_training, limited, capsys):
    model, optimizer, step = gpu_training
    run = memagent.attach(
        model, optimizer, preflight=torch.randn(2**20, 1024), predict=False
    )  # 4 GiB
    used = torch.cuda.memory_allocated()
    step()
    run.finish()
    assert "this will not fit: eval needs at least" in capsys.readouterr().err and used < 200 * MIB


def test_a_checkpoint_by_torch_save_needs_no_gpu_memory(gpu_training):
    model, optimizer, step = gpu_training
    run = memagent.attach(model, optimizer, predict=False)
    step()
    result = run.preflight()
    run.finish()
    assert result.needs[0].checkpoint_bytes < 2 * MIB and result.needs[0].optimizer_state_bytes == 0
