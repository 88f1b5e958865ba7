import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


ema = copy.deepcopy(model)
average = torch.optim.swa_utils.AveragedModel(model)
for step in range(70):
    train_step(model(torch.randn(64, 128)).square().mean())
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)
    average.update_parameters(model)
