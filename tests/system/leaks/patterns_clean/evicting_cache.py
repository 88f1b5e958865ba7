from collections import OrderedDict

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Cache:
    def __init__(self, size):
        self.size = size
        self.entries = OrderedDict()

    def get(self, key):
        if key not in self.entries:
            self.entries[key] = torch.randn(256, 128)
        if len(self.entries) > self.size:
            self.entries.popitem(last=False)
        return self.entries[key]


cache = Cache(15)
for step in range(70):
    train_step(model(cache.get(step)).square().mean())
