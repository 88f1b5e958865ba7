"""Tests on a real GPU: `python -m pytest tests/gpu`. Where there is none they are skipped, in CI too: the machines there have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device here"))


@pytest.fixture(autouse=True)
def clean_run(monkeypatch, tmp_path):
    """Runs go to a folder of the test's, and errors inside the agent are raised."""
    monkeypatch.setenv("MEMAGENT_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("MEMAGENT_RAISE", "1")
    return tmp_path / "runs"


@pytest.fixture
def gpu_training():
    """A model of some 50 MB on the GPU, its optimizer, and a function that makes one step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(1024, 1024) for _ in range(12)), torch.nn.Linear(1024, 8)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(256, 1024, device="cuda")

    def step() -> torch.Tensor:
        loss = model(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step
