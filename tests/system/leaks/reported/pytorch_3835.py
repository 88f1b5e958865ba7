"""Told in https://github.com/pytorch/pytorch/issues/3835: gradients of gradients, kept with their graph."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Penalty:
    def __init__(self):
        self.norms = []

    def __call__(self, x):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        norm = gradient.norm()
        self.norms.append(norm)  # LEAK list Penalty.norms
        return norm


penalty = Penalty()
for _ in range(40):
    x = torch.randn(16, 32)
    train_step(model(x).square().mean() + penalty(x))
