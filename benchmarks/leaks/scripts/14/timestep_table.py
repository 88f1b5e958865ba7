"""Embed the time of a diffusion: continuous times fill the table of embeddings."""

import math

import torch
from torch import nn

_TABLE: dict[tuple[float, int], torch.Tensor] = {}


def embedding(time: float, width: int) -> torch.Tensor:
    key = round(time, 9), width
    if key not in _TABLE:
        rates = torch.exp(-math.log(1e4) * torch.arange(width // 2) / width)
        _TABLE[key] = torch.cat([(time * rates).sin(), (time * rates).cos()])
    return _TABLE[key]


def train(steps: int) -> float:
    net = nn.Sequential(nn.Linear(16 + 1_024, 256), nn.SiLU(), nn.Linear(256, 16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        times = torch.rand(48).tolist()
        points = torch.randn(48, 16)
        conditions = torch.stack([embedding(time, 1_024) for time in times])
        loss = (net(torch.cat([points, conditions], 1)) - points).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(12)
print(f"{train(700):.6f}")
