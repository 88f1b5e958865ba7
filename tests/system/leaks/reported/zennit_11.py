"""Told in https://github.com/chr5tphr/zennit/issues/11: each composite registers hooks that remember their input, and none is removed."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class LinearHook:
    def __init__(self):
        self.input = None

    def __call__(self, module, inputs, output):
        self.input = inputs[0].detach().clone()

    def register(self, module):
        return module.register_forward_hook(self)  # LEAK hook _forward_hooks


class Composite:
    def __init__(self):
        self.handles = []

    def apply(self, module):
        self.handles.append(LinearHook().register(module))


def attribute(batch):
    Composite().apply(model[0])
    return model(batch)


for _ in range(40):
    train_step(attribute(torch.rand(4, 32)).mean())
