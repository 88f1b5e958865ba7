"""Told in https://github.com/NRCan/geo-deep-learning/issues/582: a metric that is updated each step and never reset."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {}
        self.add_state("values", [])

    def add_state(self, name, default):
        setattr(self, name, default)
        self._defaults[name] = default

    def update(self, predictions):
        self.values.append(predictions.detach().argmax(dim=1))  # LEAK list Metric.values


iou = Metric()
for _ in range(40):
    predictions = model(torch.rand(16, 32))
    train_step(predictions.square().mean())
    iou.update(predictions)
