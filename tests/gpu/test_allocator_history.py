"""The allocator simulator repeats histories recorded on this GPU exactly."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap

import pytest

from benchmarks.estimator.simulation_score import score_history

pytestmark = pytest.mark.gpu

PROGRAM = textwrap.dedent(
    """
    import pickle, sys
    import torch

    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    layers = [layer for width in (300, 700, 1100) for layer in (torch.nn.Linear(512, width), torch.nn.GELU(), torch.nn.Linear(width, 512))]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    for step in range(12):
        batch = torch.randn(1000 + 777 * (step % 5), 512, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.stream(side):
            copy = batch * 2
        batch.record_stream(side)
        del batch, loss, copy
        if step == 7:
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    with open(sys.argv[1], "wb") as file:
        pickle.dump((torch.cuda.memory._snapshot(), torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()), file)
    """
)


@pytest.mark.parametrize(
    "settings",
    ["", "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:[1:4,>:8]"],
    ids=["default", "expandable", "max split", "divisions"],
)
def test_it_repeats_a_recorded_training_exactly(settings, tmp_path):
    file = tmp_path / "history.pickle"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], env=environment, check=True, timeout=250
    )
    snapshot, peak_reserved, peak_allocated = pickle.loads(file.read_bytes())
    score = score_history(snapshot)
    assert score.exact, score
    assert score.address_mismatches == score.unknown_frees == 0
    assert score.simulated_peak_reserved == peak_reserved
    assert score.simulated_peak_allocated == peak_allocated
