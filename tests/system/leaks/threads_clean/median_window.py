"""A deque of 40 tensors that is full long before the end."""

# BEGIN 34
from collections import deque

import torch
from torch import nn

window = deque(maxlen=40)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(180):
    x = torch.randn(512, 128)
    y = model(x)
    loss = (y - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    window.append((y - x).detach().abs())
    if step % 20 == 0:
        print(step, torch.stack([errors.median() for errors in window]).mean().item())
