"""Tracebacks keep frames: https://github.com/pytorch/pytorch/issues/10348."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Trainer:
    def __init__(self):
        self.failures = []

    def validate(self, batch):
        output = model(batch)
        if output.isfinite().all():
            raise ArithmeticError("nothing to see")

    def fit(self, steps):
        for step in range(steps):
            batch = torch.randn(512, 128)
            train_step(model(batch).square().mean())
            try:
                self.validate(batch)
            except ArithmeticError:
                self.failures.append(sys.exc_info())  # LEAK exception Trainer.failures


Trainer().fit(70)
