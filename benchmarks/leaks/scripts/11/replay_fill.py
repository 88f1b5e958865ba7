"""Q-learning from pixels with a replay buffer that fills in the first third of the run."""

import random

import torch
import torch.nn.functional as F
from torch import nn


class ReplayBuffer:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.storage = []
        self.position = 0

    def push(self, *transition) -> None:
        if len(self.storage) < self.capacity:
            self.storage.append(transition)
        else:
            self.storage[self.position] = transition
        self.position = (self.position + 1) % self.capacity

    def sample(self, count: int):
        return [torch.stack(part) for part in zip(*random.sample(self.storage, count))]


class Q(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 8, 4)
        self.fc = nn.Linear(8 * 20 * 20, 128)
        self.out = nn.Linear(128, 4)

    def forward(self, obs):
        return self.out(F.relu(self.fc(F.relu(self.conv(obs)).flatten(1))))


random.seed(0)
torch.manual_seed(0)
q, buffer = Q(), ReplayBuffer(capacity=900)
optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
obs = torch.rand(3, 84, 84)
for step in range(700):
    for _ in range(4):
        following = torch.rand(3, 84, 84)
        buffer.push(obs, torch.tensor(random.randrange(4)), torch.rand(()), following)
        obs = following
    if len(buffer.storage) < 32:
        continue
    old, action, reward, new = buffer.sample(32)
    with torch.no_grad():
        wanted = reward + 0.99 * q(new).amax(1)
    loss = F.smooth_l1_loss(q(old).gather(1, action[:, None]).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
