"""A hook on the grad_fn of a cached tensor refers to the strategy that has the cache: a cycle through
C++ that no collector finds. https://github.com/cornellius-gp/gpytorch/pull/2734"""

import sys
from functools import partial

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


def clear_cache_hook(strategy, *_):
    strategy.memo.clear()


class PredictionStrategy:
    def __init__(self, kernel, inputs, targets):
        self.kernel = kernel
        self.inputs = inputs
        self.targets = targets
        self.memo = {}

    @property
    def mean_cache(self):
        if "mean" not in self.memo:
            covariance = self.kernel(self.inputs, self.inputs)
            covariance = covariance + 0.1 * torch.eye(len(self.inputs))
            mean = torch.linalg.solve(covariance, self.targets)
            mean.grad_fn.register_hook(partial(clear_cache_hook, self))  # LEAK any memo|Strategy
            self.memo["mean"] = mean  # LEAK any memo|Strategy
        return self.memo["mean"]

    def predict(self, points):
        return self.kernel(points, self.inputs) @ self.mean_cache


class RBF(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, a, b):
        return torch.exp(-0.5 * torch.cdist(a, b).pow(2) / self.log_scale.exp())


kernel = RBF()
features = nn.Linear(6, 3)
optimizer = torch.optim.Adam([*kernel.parameters(), *features.parameters()], lr=0.01)
for step in range(STEPS):
    x = torch.randn(160, 6)
    y = x[:, :1].sin()
    fantasy = PredictionStrategy(kernel, features(x[:128]).detach(), y[:128])
    acquisition = fantasy.predict(features(x[128:]).detach()).mean()
    acquisition.item()
    loss = (
        (kernel(features(x[:64]), features(x[64:128])).mean(1, keepdim=True) - y[:64]).pow(2).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
