"""A monitoring callback files every info value of every step below its key, for histograms.
https://github.com/ray-project/ray/issues/21041"""

import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


@dataclass
class Episode:
    env: int
    length: int = 0
    info: dict = field(default_factory=dict)
    hist_data: dict = field(default_factory=dict)


class Callbacks:
    def on_episode_step(self, episode):
        pass

    def on_episode_end(self, episode):
        pass


class MonitorInfo(Callbacks):
    def on_episode_step(self, episode):
        for key, value in episode.info.items():
            episode.hist_data.setdefault(key, []).append(value)  # LEAK any hist_data


class Walker:
    def __init__(self):
        self.position = np.zeros(24, dtype=np.float32)

    def step(self, action):
        self.position = 0.99 * self.position + 0.01 * np.resize(action, 24)
        return (
            self.position.copy(),
            float(-np.abs(self.position).sum()),
            {
                "contact": np.random.rand(8, 64).astype(np.float32),
                "torque": np.random.rand(6, 128),
                "height": float(self.position[0]),
            },
        )


class Worker:
    def __init__(self, callbacks, envs=4):
        self.envs = [Walker() for _ in range(envs)]
        self.episodes = {n: Episode(n) for n in range(envs)}
        self.callbacks = callbacks

    def rollout(self, policy):
        observations, rewards = [], []
        with torch.no_grad():
            for n, env in enumerate(self.envs):
                episode = self.episodes[n]
                action = policy(torch.from_numpy(env.position)).numpy()
                observation, reward, episode.info = env.step(action)
                episode.length += 1
                self.callbacks.on_episode_step(episode)
                observations.append(torch.from_numpy(observation))
                rewards.append(reward)
        return torch.stack(observations), torch.tensor(rewards)


policy = nn.Sequential(nn.Linear(24, 256), nn.Tanh(), nn.Linear(256, 6))
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
worker = Worker(MonitorInfo())
for iteration in range(STEPS):
    observations, rewards = worker.rollout(policy)
    loss = -(policy(observations).mean(1) * (rewards - rewards.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
