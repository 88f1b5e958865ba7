"""Mine hard examples from the last 240 batches, a window that fills up while training."""

from collections import deque

import torch
from torch import nn

torch.manual_seed(21)
recent = deque(maxlen=240)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters())
for step in range(1_000):
    inputs, labels = torch.randn(96, 128), torch.randint(10, (96,))
    if step % 5 == 4:
        losses, inputs, labels = max(recent, key=lambda item: item[0].mean().item())
    each = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    recent.append((each.detach(), inputs, labels))
    optimizer.zero_grad()
    each.mean().backward()
    optimizer.step()
print(f"{each.mean().item():.6f}")
