"""A copy of model and optimizer every five steps, of which three are kept."""

# WINDOW 60
import copy

import torch
from torch import nn


class Checkpoints:
    def __init__(self, keep):
        self.keep, self.saved = keep, {}

    def save(self, step, **parts):
        self.saved[step] = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
        for old in sorted(self.saved)[: -self.keep]:
            del self.saved[old]


model = nn.Sequential(nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 192))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
checkpoints = Checkpoints(keep=3)
for step in range(180):
    x = torch.randn(128, 192)
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
    if step % 5 == 0:
        checkpoints.save(step, model=model, optimizer=optimizer)
