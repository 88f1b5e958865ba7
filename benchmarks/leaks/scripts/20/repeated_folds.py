"""Validate a classifier by repeated k-fold splits; the trainer of each fold has its own log."""

import atexit
import json

import torch
from torch import nn


class FoldTrainer:
    def __init__(self, name: str, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.name = name
        self.inputs = inputs
        self.labels = labels
        self.model = nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Linear(192, 5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.pending = []
        atexit.register(self.flush)

    def flush(self) -> None:
        if self.pending:
            with open("folds.jsonl", "a") as file:
                file.write(json.dumps({"fold": self.name, "losses": self.pending}) + "\n")
            self.pending = []

    def fit(self, steps: int) -> None:
        for _step in range(steps):
            rows = torch.randint(len(self.inputs), (64,))
            loss = nn.functional.cross_entropy(self.model(self.inputs[rows]), self.labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.pending.append(round(loss.item(), 4))

    @torch.no_grad()
    def accuracy(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        self.model.eval()
        return (self.model(inputs).argmax(1) == labels).float().mean().item()


def folds(count: int, parts: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    chunks = torch.randperm(count).chunk(parts)
    return [
        (torch.cat([*chunks[:part], *chunks[part + 1 :]]), chunks[part]) for part in range(parts)
    ]


torch.manual_seed(207)
inputs = torch.randn(640, 64)
labels = (inputs @ torch.randn(64, 5)).argmax(1)
accuracies = []
for repeat in range(12):
    for number, (train, held_out) in enumerate(folds(len(inputs), parts=8)):
        trainer = FoldTrainer(f"{repeat}.{number}", inputs[train], labels[train])
        trainer.fit(steps=6)
        accuracies.append(trainer.accuracy(inputs[held_out], labels[held_out]))
        trainer.flush()
print(f"{sum(accuracies) / len(accuracies):.4f}")
