# An OrderedDict of features evicted by popitem(last=False) at 350 entries (pages on LRU feature caches).
from collections import OrderedDict

import memagent
import torch
from torch import nn


class FeatureCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self._store = OrderedDict()

    def get(self, key, make):
        if key in self._store:
            self._store.move_to_end(key)
            return self._store[key]
        value = make()
        self._store[key] = value
        while len(self._store) > self.capacity:
            self._store.popitem(last=False)
        return value


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))

    def forward(self, x):
        return self.net(x)


backbone = nn.Sequential(nn.Linear(128, 256), nn.Tanh()).requires_grad_(False)
probe = Probe()
optimizer = torch.optim.AdamW(probe.parameters(), lr=1e-3)
memagent.attach(probe, optimizer)
cache = FeatureCache(350)
generator = torch.Generator().manual_seed(0)
for step in range(850):
    document = int(torch.randint(0, 5000, (1,), generator=generator))
    features = cache.get(document, lambda: backbone(torch.randn(96, 128)))
    loss = nn.functional.cross_entropy(probe(features), torch.randint(0, 16, (96,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
