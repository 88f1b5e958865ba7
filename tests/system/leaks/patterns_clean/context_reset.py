import contextvars

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


current = contextvars.ContextVar("current", default=None)
for step in range(70):
    token = current.set(torch.randn(256, 128))
    try:
        train_step(model(current.get()).square().mean())
    finally:
        current.reset(token)
