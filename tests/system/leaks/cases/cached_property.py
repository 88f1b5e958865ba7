from functools import cached_property

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Item:
    def __init__(self, seed):
        self.seed = seed

    @cached_property  # LEAK object Item.features
    def features(self):
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(256, 128, generator=generator)


items = [Item(seed) for seed in range(80)]
for item in items:
    train_step(model(item.features).square().mean())
