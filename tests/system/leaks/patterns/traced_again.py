"""The loop traces the model anew for each batch and keeps what it exports."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
exported = {}


def train_step(step):
    x = torch.randn(32, 64)
    traced = torch.jit.trace(model, x, check_trace=False)
    loss = (traced(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    exported[step] = torch.fx.symbolic_trace(model)  # LEAK any exported


for step in range(70):
    train_step(step)
