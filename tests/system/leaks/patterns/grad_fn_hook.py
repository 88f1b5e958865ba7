"""A hook on a node of the graph holds the object that holds the graph; no collector sees that cycle:
https://github.com/cornellius-gp/gpytorch/pull/2734."""

import functools

import torch
from torch import nn


def clear_cache(strategy, *grads):
    strategy.cache.clear()


class PredictionStrategy:
    def __init__(self, kernel, inputs):
        self.kernel, self.inputs = kernel, inputs
        self.cache = {}

    @property
    def mean_cache(self):
        if "mean" not in self.cache:
            mean = self.kernel(self.inputs).cumsum(0)
            mean.grad_fn.register_hook(functools.partial(clear_cache, self))
            self.cache["mean"] = mean  # LEAK object PredictionStrategy.cache
        return self.cache["mean"]


kernel = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 16))
optimizer = torch.optim.Adam(kernel.parameters(), lr=1e-3)
for step in range(130):
    x = torch.randn(400, 32)
    strategy = PredictionStrategy(kernel, torch.randn(400, 32))
    offset = strategy.mean_cache.detach().mean()
    loss = (kernel(x) - offset).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
