"""An episode that never ends collects the info of each step: https://github.com/ray-project/ray/issues/21041."""

import numpy as np
import torch
from torch import nn


class Episode:
    def __init__(self):
        self.length = 0
        self.hist_data = {}
        self.last_info = {}


class MonitorInfoCallback:
    def on_episode_step(self, episode):
        for key, value in episode.last_info.items():
            episode.hist_data.setdefault(key, []).append(value)  # LEAK any Episode.hist_data


class ContinuingEnv:
    """An environment without terminal states."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def step(self, action):
        obs = self.rng.standard_normal((64, 48)).astype(np.float32)
        info = {f"sensor_{i}": self.rng.standard_normal(6000) for i in range(8)}
        return obs, float(-np.square(action).mean()), False, info


class Algorithm:
    def __init__(self):
        self.env = ContinuingEnv()
        self.policy = nn.Sequential(nn.Linear(48, 256), nn.Tanh(), nn.Linear(256, 4))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.callbacks = MonitorInfoCallback()

    def train(self, steps):
        episode = Episode()
        obs = np.zeros((64, 48), dtype=np.float32)
        for _ in range(steps):
            action = self.policy(torch.from_numpy(obs))
            obs, reward, done, info = self.env.step(action.detach().numpy())
            episode.length += 1
            episode.last_info = info
            self.callbacks.on_episode_step(episode)
            loss = action.square().mean() - 0.01 * action.std()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if done:
                episode = Episode()


Algorithm().train(150)
