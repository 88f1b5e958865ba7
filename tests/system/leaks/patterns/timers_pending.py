"""A timer per step uploads a batch much later, and threads wait: https://github.com/python/cpython/issues/87216."""

import threading

import torch
from torch import nn


def upload(name, tensor):
    print(name, tensor.shape)


def schedule(name, tensor):
    timer = threading.Timer(3600, upload, args=(name, tensor))  # LEAK any _active
    timer.daemon = True
    timer.start()


model = nn.Sequential(nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 96))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(120):
    x = torch.randn(512, 96)
    y = model(x)
    loss = (y - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule(f"batch-{step}", y.detach())
