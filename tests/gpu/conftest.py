"""Tests on a GPU: `make test` runs them on the rehearsal device, `make test-gpu` on a real one.

Other runs of pytest skip them where there is no GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

MISSING = "there is no CUDA device here"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where there is no GPU")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    if config.getoption("--require-gpu", default=False):
        raise pytest.UsageError(MISSING)
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=MISSING))


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
