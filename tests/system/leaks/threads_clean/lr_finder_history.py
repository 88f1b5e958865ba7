"""The history of a learning rate finder: floats only."""

import math

import torch
from torch import nn


class LRFinder:
    def __init__(self, model, optimizer, start=1e-6, end=1.0, steps=150):
        self.model, self.optimizer = model, optimizer
        self.factor = (end / start) ** (1 / steps)
        self.history = {"lr": [], "loss": [], "smooth": []}
        for group in optimizer.param_groups:
            group["lr"] = start

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        before = self.history["smooth"][-1] if self.history["smooth"] else value
        self.history["lr"].append(self.optimizer.param_groups[0]["lr"])
        self.history["loss"].append(value)
        self.history["smooth"].append(0.95 * before + 0.05 * value)
        for group in self.optimizer.param_groups:
            group["lr"] *= self.factor
        return math.isfinite(value)


model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1e-6))
for _ in range(150):
    x = torch.randn(512, 64)
    if not finder.step(x, x.sum(1, keepdim=True)):
        break
