"""Told in https://github.com/pytorch/pytorch/issues/52140: a module keeps a result whose graph leads back to it."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import gc

gc.disable()


class Solver(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.start = nn.Parameter(start)
        self.solve = self.once  # LEAK cycle Solver.solve
        self.solution = self.solve(torch.ones_like(start)).detach()

    def once(self, x):
        return self.start * x


for _ in range(40):
    solver = Solver(torch.ones(64, 3))
    train_step(model(torch.rand(16, 32)).mean())
