"""Position tensors in a cache with a small maximum.

As in https://github.com/huggingface/transformers/pull/45922.
"""

import functools
import random

import torch
from torch import nn


@functools.lru_cache(maxsize=10)
def positions(length, width):
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(width)[None] / width)
    return angles.sin()


random.seed(1)
model = nn.Linear(16, 16)
optimizer = torch.optim.Adam(model.parameters())
for step in range(120):
    length = random.randrange(5, 60)
    x = torch.randn(4, length, 16) + positions(length, 16)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
