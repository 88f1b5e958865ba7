"""Train from a memory of named columns, each a list of fixed length that is filled once."""

import random

import torch
from torch import nn


class MemoryBuffer:
    def __init__(self, max_capacity: int) -> None:
        self.max_capacity = max_capacity
        self.buffers = {}
        self.head = 0
        self.size = 0

    def add(self, **experience) -> None:
        for key, value in experience.items():
            if key not in self.buffers:
                self.buffers[key] = [None] * self.max_capacity
            self.buffers[key][self.head] = value
        self.head = (self.head + 1) % self.max_capacity
        self.size = min(self.size + 1, self.max_capacity)

    def sample(self, rng: random.Random, count: int) -> dict:
        places = [rng.randrange(self.size) for _ in range(count)]
        return {key: torch.stack([rows[place] for place in places]) for key, rows in self.buffers.items()}


torch.manual_seed(0)
rng = random.Random(0)
memory = MemoryBuffer(6000)
critic = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for step in range(600):
    for _ in range(16):
        memory.add(state=torch.randn(512), reward=torch.rand(1), next_state=torch.randn(512))
    batch = memory.sample(rng, 64)
    target = batch["reward"] + 0.9 * critic(batch["next_state"]).detach()
    loss = ((critic(batch["state"]) - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss.detach()))
