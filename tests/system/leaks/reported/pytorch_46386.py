"""Told in https://github.com/pytorch/pytorch/issues/46386: a hook made in __init__ mentions self, so each module is a cycle."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import gc

gc.disable()  # as if the collector's turn were far off: it counts objects, not bytes


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

        def note(module, inputs, output):
            self.calls = 1

        self.register_forward_hook(note)  # LEAK cycle Hooked


for _ in range(40):
    net = Hooked()
    train_step(model(torch.rand(16, 32)).mean())
