"""A smoothed loss keeps its graph; the logger's newest record holds the same tensor."""

import torch
from torch import nn


class Smoother:
    def __init__(self, beta):
        self.beta = beta
        self.average = 0.0

    def __call__(self, loss):
        self.average = self.beta * self.average + (1 - self.beta) * loss  # LEAK any average
        return self.average


latest = {}


def log(name, value):
    latest[name] = value


model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
smooth = Smoother(0.9)
for step in range(70):
    x = torch.randn(64, 32)
    loss = (model(x).squeeze(1) - x.prod(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log("loss", smooth(loss))
