"""A prioritized replay keeps its items in an object array that is far too large:
https://github.com/openai/baselines/issues/943."""

import numpy as np
import torch
from torch import nn


class SumTree:
    write = 0

    def __init__(self, capacity):
        self.capacity = capacity
        self.tree = np.zeros(2 * capacity - 1)
        self.data = np.zeros(capacity, dtype=object)
        self.entries = 0

    def add(self, priority, item):
        self.data[self.write] = item  # LEAK any SumTree.data
        self.update(self.write + self.capacity - 1, priority)
        self.write = (self.write + 1) % self.capacity
        self.entries = min(self.entries + 1, self.capacity)

    def update(self, node, priority):
        change = priority - self.tree[node]
        while True:
            self.tree[node] += change
            if node == 0:
                return
            node = (node - 1) // 2

    def get(self, value):
        node = 0
        while 2 * node + 1 < len(self.tree):
            left = 2 * node + 1
            if value <= self.tree[left]:
                node = left
            else:
                value -= self.tree[left]
                node = left + 1
        return self.data[node - self.capacity + 1]


class Agent:
    def __init__(self):
        self.memory = SumTree(20_000)
        self.net = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 6))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=2.5e-4)

    def observe(self, state, reward, next_state):
        self.memory.add(abs(reward) + 0.01, (state, reward, next_state))

    def learn(self):
        total = self.memory.tree[0]
        items = [self.memory.get(np.random.uniform(0, total)) for _ in range(4)]
        states = torch.cat([item[0] for item in items])
        rewards = torch.tensor([item[1] for item in items])
        values = self.net(states).amax(1).view(4, -1).mean(1)
        loss = nn.functional.smooth_l1_loss(values, rewards)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


np.random.seed(0)
agent = Agent()
state = torch.randn(128, 512)
for t in range(160):
    next_state = torch.randn(128, 512)
    agent.observe(state, float(np.random.rand()), next_state)
    state = next_state
    agent.learn()
