"""A cache on a method, as in https://github.com/huggingface/transformers/pull/45708."""

from functools import lru_cache

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 3.0

    @lru_cache(maxsize=None)  # LEAK cache Encoder.positions
    def positions(self, length, offset):
        return self.scale * torch.randn(length, 128) + offset


encoder = Encoder()
for step in range(70):
    train_step(model(encoder.positions(256, step)).square().mean())
