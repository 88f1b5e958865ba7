"""Buffers of a swapper are made when none is free and handed back: the pool reaches the number in
flight and stays there. After https://github.com/torch/optim/pull/69."""

# BEGIN 34
# CONFIRM 80
import random

import torch
from torch import nn


class Pool:
    def __init__(self, shape):
        self.shape, self.free, self.made = shape, [], 0

    def take(self):
        if self.free:
            return self.free.pop()
        self.made += 1
        return torch.empty(self.shape)

    def give(self, buffer):
        self.free.append(buffer)


class Swapper:
    def __init__(self, pool, depth):
        self.pool, self.depth, self.flying = pool, depth, []

    def push(self, tensor):
        self.flying.append(self.pool.take().copy_(tensor))
        while len(self.flying) > self.depth:
            self.pool.give(self.flying.pop(random.randrange(len(self.flying))))


random.seed(2)
pool = Pool((320, 320))
swapper = Swapper(pool, depth=40)
model = nn.Sequential(nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 320))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(180):
    x = torch.randn(320, 320)
    y = model(x)
    optimizer.zero_grad()
    (y - x).square().mean().backward()
    optimizer.step()
    swapper.push(y.detach())
print(pool.made)
