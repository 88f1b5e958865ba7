"""A `cat` state that is never reset: https://github.com/Lightning-AI/pytorch-lightning/issues/4098."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {}

    def add_state(self, name, default):
        setattr(self, name, default)
        self._defaults[name] = default

    def forward(self, *args):
        self.update(*args)


class AveragePrecision(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("preds", [])

    def update(self, preds):
        self.preds.append(preds.detach())  # LEAK list AveragePrecision.preds


metric = AveragePrecision()
for step in range(70):
    output = model(torch.randn(512, 128))
    train_step(output.square().mean())
    metric(output)
