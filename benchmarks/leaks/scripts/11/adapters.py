"""Learn tasks one after another: each task gets a fresh adapter on a frozen trunk."""

import torch
import torch.nn.functional as F
from torch import nn


class Learner(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.width = width
        self.trunk = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
        self.adapter = nn.Linear(width, width)
        self.head = nn.Linear(width, 8)

    def next_task(self, optimizer) -> None:
        self.adapter = nn.Linear(self.width, self.width)
        optimizer.add_param_group({"params": list(self.adapter.parameters())})

    def forward(self, x):
        with torch.no_grad():
            features = self.trunk(x)
        return self.head(F.relu(features + self.adapter(features)))


def fit(tasks: int, steps_per_task: int) -> None:
    learner = Learner()
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    for task in range(tasks):
        if task:
            learner.next_task(optimizer)
        rule = torch.randn(64, 8)
        for _ in range(steps_per_task):
            x = torch.randn(256, 64)
            y = (x @ rule).argmax(-1)
            loss = F.cross_entropy(learner(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if task % 20 == 0:
            print(f"task {task}: {loss.item():.3f}")


torch.manual_seed(3)
fit(tasks=140, steps_per_task=5)
