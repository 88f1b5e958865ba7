"""Choose points by what a process would predict after them; its cache is void once used."""

import functools

import torch
from torch import nn


def clear_cache(prediction: "Prediction", *_: object) -> None:
    prediction.cache = None


class Prediction:
    def __init__(self, features: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.features = features
        self.inputs = inputs
        self.targets = targets
        self.cache = None

    def mean_cache(self) -> torch.Tensor:
        if self.cache is None:
            rows = self.features(self.inputs)
            kernel = rows @ rows.T + 0.1 * torch.eye(len(rows))
            weights = torch.linalg.solve(kernel, self.targets)
            weights.grad_fn.register_hook(functools.partial(clear_cache, self))
            self.cache = weights
        return self.cache

    def mean(self, points: torch.Tensor) -> torch.Tensor:
        return self.features(points) @ self.features(self.inputs).T @ self.mean_cache()

    def fantasize(self, points: torch.Tensor) -> "Prediction":
        guesses = self.mean(points).detach()
        inputs, targets = torch.cat([self.inputs, points]), torch.cat([self.targets, guesses])
        return Prediction(self.features, inputs, targets)


torch.manual_seed(67)
features = nn.Sequential(nn.Linear(6, 48), nn.Tanh())
optimizer = torch.optim.Adam(features.parameters(), lr=1e-3)
best = 0.0
for _step in range(400):
    inputs = torch.rand(48, 6)
    prediction = Prediction(features, inputs, torch.sin(3 * inputs.sum(1)))
    fantasy = prediction.fantasize(torch.rand(8, 6))
    best = max(best, fantasy.mean(torch.rand(16, 6)).max().item())
    points = torch.rand(32, 6)
    loss = nn.functional.mse_loss(prediction.mean(points), torch.sin(3 * points.sum(1)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f} {best:.4f}")
