import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import copy

snapshots = []
for _ in range(40):
    train_step(model(torch.randn(16, 32)).pow(2).mean())
    snapshots.append(copy.deepcopy(model.state_dict()))  # LEAK list snapshots
