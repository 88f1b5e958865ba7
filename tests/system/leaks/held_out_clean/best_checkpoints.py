"""The five best states are kept in a heap; a better one replaces the worst."""

import heapq
import itertools
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class TopK:
    def __init__(self, k):
        self.k = k
        self.heap = []
        self.tie = itertools.count()

    def offer(self, score, model):
        if len(self.heap) == self.k and score <= self.heap[0][0]:
            return
        state = {name: value.detach().clone() for name, value in model.state_dict().items()}
        entry = (score, next(self.tie), state)
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heapreplace(self.heap, entry)


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
best = TopK(5)
for step in range(STEPS):
    x = torch.randn(128, 64)
    loss = (model(x) - x.roll(3, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best.offer(-loss.item(), model)
