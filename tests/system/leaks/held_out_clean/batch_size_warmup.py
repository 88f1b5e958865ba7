"""The batch grows by gradient accumulation first, then in rows, as long as the warm-up lasts."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


def plan(step):
    """Return micro-batches and their rows."""
    progress = min(step / 240, 1.0)
    return 1 + int(3 * progress), 16 + int(112 * progress)


model = nn.Sequential(
    nn.Linear(200, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 20)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=240)
seen = 0
for step in range(STEPS):
    parts, rows = plan(step)
    micro = [(torch.randn(rows, 200), torch.randint(0, 20, (rows,))) for _ in range(parts)]
    for x, y in micro:
        loss = nn.functional.cross_entropy(model(x), y) / parts
        loss.backward()
        seen += rows
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
