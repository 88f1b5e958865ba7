# Prioritised level replay: 256 levels by seed; a new level replaces the one with the lowest score. Clean.
import random

import memagent
import torch
from torch import nn


class LevelSampler:
    def __init__(self, capacity):
        self.capacity = capacity
        self.levels = {}
        self.scores = {}

    def add(self, seed, level, score):
        if len(self.levels) >= self.capacity:
            worst = min(self.scores, key=self.scores.get)
            if self.scores[worst] > score:
                return
            del self.levels[worst], self.scores[worst]
        self.levels[seed] = level
        self.scores[seed] = score

    def replay(self):
        seed = random.choice(list(self.levels))
        return seed, self.levels[seed]


agent = nn.Sequential(nn.Flatten(0), nn.Linear(13 * 13 * 64, 64), nn.Tanh(), nn.Linear(64, 7))
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4)
memagent.attach(agent, optimizer)
sampler = LevelSampler(256)
for step in range(850):
    if step % 2 == 0 or not sampler.levels:
        seed, level = random.getrandbits(32), torch.rand(13, 13, 64)
    else:
        seed, level = sampler.replay()
    loss = agent(level).logsumexp(0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sampler.add(seed, level, loss.item())
