"""Losses of the micro batches are summed with their graphs, then dropped."""

import torch
from torch import nn


class Accumulator:
    def __init__(self, every):
        self.every = every
        self.losses, self.outputs = [], []

    def add(self, loss, output):
        self.losses.append(loss)
        self.outputs.append(output)
        return len(self.losses) == self.every

    def flush(self):
        total = torch.stack(self.losses).sum() / self.every
        self.losses, self.outputs = [], []
        return total


model = nn.Sequential(nn.Linear(128, 192), nn.GELU(), nn.Linear(192, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulator = Accumulator(6)
for micro_step in range(600):
    x = torch.randn(128, 128)
    y = model(x)
    if accumulator.add((y - x).square().mean(), y):
        accumulator.flush().backward()
        optimizer.step()
        optimizer.zero_grad()
