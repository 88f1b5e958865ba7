"""One accelerator prepares the model of each trial, and keeps every optimizer that it prepared.
https://github.com/huggingface/accelerate/issues/84"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class WrappedOptimizer:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)


class Accelerator:
    def __init__(self):
        self._optimizers = []

    def prepare(self, *objects):
        return tuple(self._prepare_one(o) for o in objects)

    def _prepare_one(self, obj):
        if isinstance(obj, torch.optim.Optimizer):
            return self.prepare_optimizer(obj)
        return obj

    def prepare_optimizer(self, optimizer):
        optimizer = WrappedOptimizer(optimizer)
        self._optimizers.append(optimizer)  # LEAK any _optimizers
        return optimizer

    def backward(self, loss):
        loss.backward()


def run_trial(accelerator, learning_rate, width, steps):
    model = nn.Sequential(nn.Linear(48, width), nn.SiLU(), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    model, optimizer = accelerator.prepare(model, optimizer)
    score = 0.0
    for _ in range(steps):
        x = torch.randn(64, 48)
        loss = (model(x) - x.pow(2).sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        score = loss.item()
    return score


def main():
    accelerator = Accelerator()
    best = float("inf")
    for trial in range(max(1, STEPS // 10)):
        best = min(best, run_trial(accelerator, 10 ** -(2 + trial % 3), 4096, steps=10))
    print(best)


main()
