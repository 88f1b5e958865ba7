"""Train a policy in an environment whose information a callback keeps for the episode."""

import random

import torch
from torch import nn


class Episode:
    def __init__(self) -> None:
        self.hist_data = {}
        self.total_reward = 0.0

    def last_info(self, rng: random.Random) -> dict:
        return {f"metadata_{number}": rng.random() for number in range(100)}


class MonitorInfo:
    def on_episode_step(self, episode: Episode, info: dict) -> None:
        for key, value in info.items():
            episode.hist_data.setdefault(key, []).append(value)


class Worker:
    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.callbacks = MonitorInfo()
        self.rng = random.Random(0)
        self.episode = Episode()
        self.state = torch.zeros(1, 8)

    def sample(self, steps: int):
        observations, actions = [], []
        for _ in range(steps):
            with torch.no_grad():
                action = self.policy(self.state).argmax(-1)
            observations.append(self.state)
            actions.append(action)
            self.state = torch.tanh(self.state + 0.1 * torch.randn(1, 8))
            self.callbacks.on_episode_step(self.episode, self.episode.last_info(self.rng))
        return torch.cat(observations), torch.cat(actions)


def main() -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    worker = Worker(policy)
    for _ in range(500):
        observations, actions = worker.sample(100)
        loss = nn.functional.cross_entropy(policy(observations), actions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(float(loss.detach()))


main()
