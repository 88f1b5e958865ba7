"""Distil from replicas that are entered one by one, and left together at the end of training."""

import contextlib

import torch
from torch import nn


class Replica:
    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, *_: object) -> None:
        self.weights.clear()


class Deployment:
    def __init__(self) -> None:
        self.exits = contextlib.ExitStack()
        self.replica = None

    def update(self, model: nn.Module) -> None:
        self.replica = self.exits.enter_context(Replica(model))


torch.manual_seed(41)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
deployment = Deployment()
for step in range(600):
    inputs = torch.randn(64, 64)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    if deployment.replica is not None:
        served = torch.func.functional_call(model, deployment.replica.weights, inputs)
        loss = loss + 0.1 * nn.functional.mse_loss(model(inputs), served.detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        deployment.update(model)
deployment.exits.close()
print(f"{loss.item():.6f}")
