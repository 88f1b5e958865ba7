"""Models and steps of the fitting tests."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from memagent.estimator.trace.steps import call_model, compute_loss

BATCH = 16


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.down(nn.functional.gelu(self.up(self.norm(values))))


class Residual(nn.Module):
    """Blocks in a ModuleList; `widths` of different sizes make blocks of different cost."""

    def __init__(self, width: int = 64, blocks: int = 6) -> None:
        super().__init__()
        self.inner = nn.Linear(8, width)
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(blocks))
        self.head = nn.Linear(width, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.inner(values)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def convnet() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in ((3, 16), (16, 32), (32, 32)):
        layers += [
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))


@pytest.fixture
def residual() -> Residual:
    torch.manual_seed(0)
    return Residual()


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(BATCH, 256, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(BATCH, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def gradients_of(model: nn.Module, inputs: Any, targets: Any = None, loss: Any = None) -> Any:
    """Return the gradients of one plain step, by name, of a copy of the model."""
    model = copy.deepcopy(model)
    torch.manual_seed(7)
    output = call_model(model, inputs)
    compute_loss(output, inputs if targets is None else targets, loss, []).backward()
    return named_gradients(model)


def named_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
