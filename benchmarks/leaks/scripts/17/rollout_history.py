"""Reinforce completions; the buffer samples from new rollouts, and remembers all that there were."""

import random

import torch
from torch import nn


class Buffer:
    def __init__(self) -> None:
        self.draw = random.Random(47)
        self.rollouts = []
        self.rollout_history = []

    def update(self, rollouts: list[dict]) -> None:
        self.rollouts = rollouts
        self.rollout_history.extend(rollouts)

    def sample(self, count: int) -> list[dict]:
        return self.draw.sample(self.rollouts, count)


def generate(step: int, count: int) -> list[dict]:
    draw = random.Random(step)
    return [
        {
            "prompt": step * count + number,
            "tokens": [draw.randrange(300, 50_000) for _ in range(60)],
            "reward": draw.random(),
        }
        for number in range(count)
    ]


torch.manual_seed(47)
buffer = Buffer()
model = nn.Sequential(nn.Embedding(50_000, 16), nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(600):
    buffer.update(generate(step, 16))
    batch = buffer.sample(8)
    tokens = torch.tensor([rollout["tokens"] for rollout in batch])
    rewards = torch.tensor([rollout["reward"] for rollout in batch])
    loss = (model(tokens).mean((1, 2)) * rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.8f}")
