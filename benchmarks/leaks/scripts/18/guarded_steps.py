"""Train a regression with a guard, which rejects the batches whose activations are too large."""

import torch
from torch import nn


class Guard:
    too_large = ValueError("activations are too large")

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def check(self, activations: torch.Tensor) -> torch.Tensor:
        largest = activations.abs().amax()
        if largest > self.limit:
            raise self.too_large
        return activations


class Learner:
    def __init__(self) -> None:
        self.encoder = nn.Sequential(nn.Linear(80, 160), nn.Tanh(), nn.Linear(160, 160))
        self.head = nn.Linear(160, 80)
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.01)
        self.guard = Guard(1.4)

    def step(self, inputs: torch.Tensor) -> float:
        activations = self.encoder(inputs)
        outputs = self.head(self.guard.check(activations))
        loss = nn.functional.mse_loss(outputs, inputs)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(4)
learner = Learner()
total, rejected = 0.0, 0
for _step in range(600):
    inputs = torch.randn(128, 80) * (1.0 + torch.rand(1))
    try:
        total += learner.step(inputs)
    except ValueError:
        rejected += 1
print(f"{total:.6f} {rejected}")
