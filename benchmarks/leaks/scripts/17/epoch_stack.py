"""Train with contexts that are entered one by one, and left together at the end of each epoch."""

import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def snapshot(model: nn.Module):
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    yield weights
    weights.clear()


torch.manual_seed(59)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
drift = 0.0
for _epoch in range(7):
    with contextlib.ExitStack() as contexts:
        first = contexts.enter_context(snapshot(model))
        for _step in range(100):
            inputs = torch.randn(64, 64)
            loss = nn.functional.mse_loss(model(inputs), inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            newest = contexts.enter_context(snapshot(model))
        drift += float((newest[0] - first[0]).norm())
print(f"{drift:.6f}")
