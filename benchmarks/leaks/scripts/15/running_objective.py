"""Fit a denoiser, and follow the sum of its errors on clean data by an iterator."""

from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def steps(count: int) -> Iterator[torch.Tensor]:
    for _ in range(count):
        clean = torch.randn(96, 64)
        loss = nn.functional.mse_loss(model(clean + 0.3 * torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield nn.functional.mse_loss(model(clean), clean)


totals = accumulate(steps(700))
for number, total in enumerate(totals, 1):
    if number % 100 == 0:
        print(f"{number} {total.item() / number:.5f}")
