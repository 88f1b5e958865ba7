"""Fit a curve in short epochs: the trainer remembers the weights of each for a later average."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.trajectory = []

    def fit(self, epochs: int) -> float:
        for _ in range(epochs):
            loss = self.epoch()
            self.remember(loss)
        return loss

    def epoch(self) -> float:
        total = 0.0
        for x in torch.linspace(-2, 2, 64 * 42).reshape(42, 64, 1):
            loss = F.mse_loss(self.model(x), torch.sin(3 * x))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / 42

    def remember(self, loss: float) -> None:
        state = copy.deepcopy(self.model.state_dict())
        self.trajectory.append((loss, state))


torch.manual_seed(7)
trainer = Trainer(
    nn.Sequential(nn.Linear(1, 384), nn.Tanh(), nn.Linear(384, 384), nn.Tanh(), nn.Linear(384, 1))
)
print(f"{trainer.fit(24):.6f}")
