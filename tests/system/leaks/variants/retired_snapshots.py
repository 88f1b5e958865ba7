"""The last few snapshots are kept; older ones refer to themselves, and nobody collects garbage.

# WINDOW 40
"""

import gc
from collections import deque

import torch


class Snapshot:
    def __init__(self, weights):
        self.weights = weights
        self.restore = lambda: self.weights  # LEAK cycle Snapshot


gc.disable()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
latest = deque(maxlen=8)
for _ in range(70):
    loss = model(torch.randn(16, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    latest.append(Snapshot(model.weight.detach().clone()))
