"""A layer is unfrozen every 60 steps, from the top: gradients and moments appear in six steps."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80

layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
backbone = nn.Sequential(*layers).requires_grad_(False)
head = nn.Linear(256, 12)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
frozen = list(layers)
for step in range(STEPS):
    if step % 60 == 59 and frozen:
        layer = frozen.pop().requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-4})
    x, y = torch.randn(32, 256), torch.randint(0, 12, (32,))
    loss = nn.functional.cross_entropy(head(backbone(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
