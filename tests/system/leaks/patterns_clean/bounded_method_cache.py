from functools import lru_cache

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Encoder:
    @lru_cache(maxsize=12)
    def positions(self, offset):
        return torch.randn(256, 128) + offset


encoder = Encoder()
for step in range(70):
    train_step(model(encoder.positions(step)).square().mean())
