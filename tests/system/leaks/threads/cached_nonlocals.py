"""A cache over bound methods keeps their objects: https://github.com/langchain-ai/langchain/pull/35296."""

import inspect
from functools import lru_cache

import torch
from torch import nn


@lru_cache(maxsize=10_000)  # LEAK any get_nonlocals
def get_nonlocals(function):
    return inspect.getclosurevars(function).nonlocals


class Augment:
    def __init__(self, noise):
        self.noise = noise

    def __call__(self, x):
        return x + self.apply_noise(x)

    def apply_noise(self, x):
        return 0.1 * self.noise * x.abs().mean()


class Pipeline:
    def __init__(self, *stages):
        self.stages = stages
        for stage in stages:
            get_nonlocals(stage.apply_noise)

    def invoke(self, x):
        for stage in self.stages:
            x = stage(x)
        return x


model = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 160))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(140):
    x = torch.randn(512, 160)
    pipeline = Pipeline(Augment(torch.randn(512, 160)), Augment(torch.randn(512, 160)))
    loss = (model(pipeline.invoke(x)) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
