"""Train a diffusion model on pictures of many sizes, with padded scratch memory that is reused."""

import random

import torch
import torch.nn.functional as F
from torch import nn


class Scratch:
    """One buffer for each size, of which the eight used last stay."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.by_size = {}

    def get(self, size: int) -> torch.Tensor:
        buffer = self.by_size.pop(size, None)
        if buffer is None:
            buffer = torch.zeros(8, 3, size, size)
        self.by_size[size] = buffer
        if len(self.by_size) > self.count:
            self.by_size.pop(next(iter(self.by_size)))
        return buffer


torch.manual_seed(0)
rng = random.Random(0)
scratch = Scratch(8)
model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 3, 3, padding=1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(500):
    size = rng.randrange(24, 96, 2)
    noisy = scratch.get(size)
    images = torch.rand(8, 3, size, size)
    torch.add(images, torch.randn(8, 3, size, size), alpha=0.2, out=noisy)
    loss = F.mse_loss(model(noisy), images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss.detach()))
