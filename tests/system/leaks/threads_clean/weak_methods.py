"""Subscribers are held as weak methods: the fix of https://github.com/scikit-hep/pyhf/pull/1035."""

import weakref

import torch
from torch import nn

events = {}


def subscribe(name, method):
    alive = [ref for ref in events.get(name, []) if ref() is not None]
    events[name] = [*alive, weakref.WeakMethod(method)]


class Viewer:
    def __init__(self, indices):
        self.indices = indices
        subscribe("changed", self.refresh)

    def refresh(self):
        self.indices = self.indices.sort().values


model = nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
for step in range(160):
    viewer = Viewer(torch.randint(0, 256, (60_000,)))
    x = torch.randn(128, 256)
    loss = (model(x) - x[:, viewer.indices[:256]]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
