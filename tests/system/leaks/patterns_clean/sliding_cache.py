import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class SlidingCache:
    def __init__(self, length):
        self.length = length
        self.keys = torch.zeros(1, 0, 128)

    def update(self, key):
        self.keys = torch.cat([self.keys, key], dim=1)[:, -self.length :]
        return self.keys


cache = SlidingCache(160)
for step in range(70):
    train_step(model(cache.update(torch.randn(1, 16, 128))).square().mean())
