"""A prioritized replay of 800 transitions fills until step 100, then overwrites the oldest."""

import sys
from collections import namedtuple

import numpy as np
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80
Transition = namedtuple("Transition", "state action reward following")


class PrioritizedReplay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.storage = []
        self.priorities = np.zeros(capacity, dtype=np.float64)
        self.position = 0

    def push(self, transition):
        if len(self.storage) < self.capacity:
            self.storage.append(transition)
        else:
            self.storage[self.position] = transition
        self.priorities[self.position] = self.priorities.max() or 1.0
        self.position = (self.position + 1) % self.capacity

    def sample(self, size):
        weights = self.priorities[: len(self.storage)] ** 0.6
        indices = np.random.choice(len(self.storage), size, p=weights / weights.sum())
        return indices, [self.storage[i] for i in indices]


network = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 4))
target = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 4))
target.load_state_dict(network.state_dict())
optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
replay = PrioritizedReplay(800)
state = np.random.randn(512).astype(np.float32)
for step in range(STEPS):
    for _ in range(8):
        following = (0.98 * state + 0.1 * np.random.randn(512)).astype(np.float32)
        replay.push(Transition(state, np.random.randint(4), float(state[0]), following))
        state = following
    indices, batch = replay.sample(32)
    states = torch.from_numpy(np.stack([t.state for t in batch]))
    actions = torch.tensor([t.action for t in batch])
    rewards = torch.tensor([t.reward for t in batch])
    with torch.no_grad():
        later = target(torch.from_numpy(np.stack([t.following for t in batch]))).max(1).values
    errors = network(states).gather(1, actions[:, None]).squeeze(1) - rewards - 0.95 * later
    optimizer.zero_grad()
    errors.pow(2).mean().backward()
    optimizer.step()
    replay.priorities[indices] = errors.detach().abs().numpy() + 1e-3
    if step % 50 == 0:
        target.load_state_dict(network.state_dict())
