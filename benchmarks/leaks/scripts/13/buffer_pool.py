"""Smooth meshes of many sizes: buffers go back to a pool, which has as many as were ever in use."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Pool:
    def __init__(self) -> None:
        self.free = {}
        self.made = 0

    def take(self, rows: int):
        rows = -(-rows // 64) * 64
        waiting = self.free.setdefault(rows, [])
        if waiting:
            return waiting.pop()
        self.made += 1
        return torch.empty(rows, 64)

    def give(self, buffer) -> None:
        self.free[buffer.shape[0]].append(buffer)


class Smoother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        return x + self.layers(x)


torch.manual_seed(10)
random = np.random.default_rng(10)
pool, model = Pool(), Smoother()
optimizer = torch.optim.Adam(model.parameters())
for step in range(900):
    taken = []
    loss = 0.0
    for rows in random.integers(40, 1_600, random.poisson(3) + 1):
        buffer = pool.take(int(rows))
        taken.append(buffer)
        buffer.normal_()
        loss = loss + F.mse_loss(model(buffer), buffer * 0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for buffer in taken:
        pool.give(buffer)
print(pool.made, f"{loss.item():.6f}")
