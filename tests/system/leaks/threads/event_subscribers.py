"""Bound methods subscribe to an event and never leave: https://github.com/scikit-hep/pyhf/pull/1035."""

import torch
from torch import nn

events = {}


def subscribe(name):
    def decorator(function):
        events.setdefault(name, []).append(function)  # LEAK any events
        return function

    return decorator


def trigger(name):
    for function in events.get(name, []):
        function()


class TensorViewer:
    def __init__(self, indices):
        self.indices = indices
        self.offsets = None
        self._precompute()
        subscribe("tensorlib_changed")(self._precompute)

    def _precompute(self):
        self.offsets = torch.argsort(self.indices)

    def stitch(self, data):
        return data[:, self.offsets % data.shape[1]]


def main():
    model = nn.Linear(256, 256)
    optimizer = torch.optim.Adam(model.parameters())
    for fit in range(150):
        viewer = TensorViewer(torch.randint(0, 256, (40_000,)))
        x = torch.randn(64, 256)
        stitched = viewer.stitch(x)[:, :256]
        loss = nn.functional.mse_loss(model(x), stitched)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
