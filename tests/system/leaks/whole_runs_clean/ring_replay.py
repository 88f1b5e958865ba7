# Looks like DLR-RM/stable-baselines3#1936: a replay ring of preallocated numpy arrays. Its pages become
# resident as it fills (first 600 of 1000 steps), then it wraps around. Clean.
import memagent
import numpy as np
import torch
from torch import nn


class ReplayBuffer:
    def __init__(self, size, obs_dim, act_dim):
        self.observations = np.zeros((size, obs_dim), dtype=np.float32)
        self.next_observations = np.zeros((size, obs_dim), dtype=np.float32)
        self.actions = np.zeros((size, act_dim), dtype=np.float32)
        self.rewards = np.zeros(size, dtype=np.float32)
        self.pos, self.full, self.size = 0, False, size

    def add(self, obs, action, reward, next_obs):
        self.observations[self.pos], self.next_observations[self.pos] = obs, next_obs
        self.actions[self.pos], self.rewards[self.pos] = action, reward
        self.pos += 1
        if self.pos == self.size:
            self.full, self.pos = True, 0

    def sample(self, n):
        index = np.random.randint(0, self.size if self.full else self.pos, n)
        return [
            torch.from_numpy(a[index])
            for a in (self.observations, self.actions, self.rewards, self.next_observations)
        ]


actor = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 4), nn.Tanh())
critic = nn.Sequential(nn.Linear(1028, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(list(actor.parameters()) + list(critic.parameters()), lr=3e-4)
memagent.attach([actor, critic], optimizer)
buffer = ReplayBuffer(2000, 1024, 4)
obs = np.random.randn(1024).astype(np.float32)
for step in range(850):
    for _ in range(4):
        with torch.no_grad():
            action = actor(torch.from_numpy(obs)).numpy()
        next_obs = np.random.randn(1024).astype(np.float32)
        buffer.add(obs, action, float(next_obs.mean()), next_obs)
        obs = next_obs
    o, a, r, n = buffer.sample(64)
    with torch.no_grad():
        target = r + 0.99 * critic(torch.cat([n, actor(n)], 1)).squeeze(1)
    loss = (critic(torch.cat([o, a], 1)).squeeze(1) - target).pow(2).mean() - critic(
        torch.cat([o, actor(o)], 1)
    ).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
