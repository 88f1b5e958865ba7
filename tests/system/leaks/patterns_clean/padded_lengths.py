import random

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


random.seed(0)
for step in range(70):
    length = 32 + 4 * step // 3 + random.randrange(64)
    batch = torch.randn(8, length, 128)
    mask = torch.ones(8, length)
    train_step((model(batch).sum(-1) * mask).square().mean())
