"""Train on a replay of episodes of varying length, a quarter larger than its capacity."""

import random

import torch
from torch import nn


class Replay:
    """Drops the oldest quarter when it's over its capacity by that much."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.episodes = []

    def add(self, episode: torch.Tensor) -> None:
        self.episodes.append(episode)
        if len(self.episodes) >= self.capacity * 5 // 4:
            del self.episodes[: len(self.episodes) - self.capacity]

    def sample(self, rng: random.Random, count: int) -> torch.Tensor:
        return torch.cat([rng.choice(self.episodes)[:10] for _ in range(count)])


torch.manual_seed(0)
rng = random.Random(0)
replay = Replay(640)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(600):
    for _ in range(4):
        replay.add(torch.randn(rng.randint(20, 80), 128))
    batch = replay.sample(rng, 16)
    loss = ((model(batch) - batch) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss.detach()))
