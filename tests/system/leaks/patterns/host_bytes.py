import io

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


snapshots = {}


def checkpoint(step):
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    snapshots[step] = buffer.getvalue()  # LEAK any snapshots


for step in range(70):
    train_step(model(torch.randn(64, 128)).square().mean())
    checkpoint(step)
