"""A queue of gradients is emptied when it has exactly 64, which never happens in steps of three.
https://github.com/wvabrinskas/Neuron/pull/68"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class GradientAccumulator:
    def __init__(self, limit):
        self.limit = limit
        self.queue = []
        self.flushed = 0

    def insert(self, gradients):
        self.queue.extend(g.detach().clone() for g in gradients)  # LEAK any queue
        if len(self.queue) == self.limit:
            self.flushed += len(self.queue)
            self.queue = []

    def average_norm(self):
        return sum(g.norm().item() for g in self.queue[-6:]) / 6


model = nn.Sequential(nn.Linear(64, 128), nn.Hardswish(), nn.Linear(128, 64), nn.Linear(64, 10))
accumulator = GradientAccumulator(64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, nesterov=True, momentum=0.9)
for step in range(STEPS):
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    accumulator.insert([layer.weight.grad for layer in model if isinstance(layer, nn.Linear)])
    optimizer.step()
    if step % 100 == 99:
        print(step, loss.item(), accumulator.average_norm())
