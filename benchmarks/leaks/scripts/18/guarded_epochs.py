"""Train a regression with a guard; how often it rejected a batch is told after each epoch."""

import torch
from torch import nn


class Guard:
    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.too_large = ValueError("activations are too large")

    def check(self, activations: torch.Tensor) -> torch.Tensor:
        if activations.abs().amax() > self.limit:
            raise self.too_large
        return activations

    def depth(self) -> int:
        count, entry = 0, self.too_large.__traceback__
        while entry:
            count, entry = count + 1, entry.tb_next
        self.too_large = self.too_large.with_traceback(None)
        return count


torch.manual_seed(40)
encoder = nn.Sequential(nn.Linear(80, 160), nn.Tanh(), nn.Linear(160, 160))
head = nn.Linear(160, 80)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
guard = Guard(1.45)


def step(inputs: torch.Tensor) -> float:
    activations = encoder(inputs)
    loss = nn.functional.mse_loss(head(guard.check(activations)), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


total, rejected = 0.0, []
for _epoch in range(6):
    for _step in range(100):
        inputs = torch.randn(128, 80) * (1.0 + torch.rand(1))
        try:
            total += step(inputs)
        except ValueError:
            pass
    rejected.append(guard.depth())
print(f"{total:.6f} {rejected}")
