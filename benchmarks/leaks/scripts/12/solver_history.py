"""Solve a parametric problem by a trainer that keeps its epochs' outputs by name."""

import torch
from torch import nn


class Problem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 12))

    def forward(self, batch: dict) -> dict:
        x = self.policy(batch["p"])
        objective = ((x - batch["p"].sin()) ** 2).sum(-1)
        violation = torch.relu(x.abs() - 0.8).sum(-1)
        return {"x": x, "objective": objective, "loss": (objective + 10 * violation).mean()}


class Trainer:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.optimizer = torch.optim.AdamW(problem.parameters(), lr=1e-3)
        self.best = None

    def train(self, epochs: int) -> dict:
        history = {"train_loss": [], "train_objective": [], "train_x": []}
        for _ in range(epochs):
            output = self.problem({"p": torch.rand(1024, 12)})
            self.optimizer.zero_grad()
            output["loss"].backward()
            self.optimizer.step()
            for key in history:
                history[key].append(output[key.removeprefix("train_")])
            if self.best is None or output["loss"] < self.best:
                self.best = output["loss"].detach()
        return history


torch.manual_seed(0)
solved = Trainer(Problem()).train(500)
print(float(solved["train_loss"][-1].detach()), len(solved["train_objective"]))
