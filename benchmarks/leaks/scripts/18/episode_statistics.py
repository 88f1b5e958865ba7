"""Learn values from episodes, whose statistics are computed once and kept beside them."""

import weakref

import torch
from torch import nn


class Episode:
    def __init__(self, observations: torch.Tensor, rewards: torch.Tensor) -> None:
        self.observations = observations
        self.rewards = rewards


class Statistics:
    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        weights = 0.97 ** torch.arange(len(episode.rewards))
        tail = (episode.rewards * weights).flip(0).cumsum(0).flip(0)
        self.returns = tail / weights

    def normalized(self) -> torch.Tensor:
        return (self.returns - self.returns.mean()) / (self.returns.std() + 1e-6)


_statistics = weakref.WeakKeyDictionary()


def statistics_of(episode: Episode) -> Statistics:
    if episode not in _statistics:
        _statistics[episode] = Statistics(episode)
    return _statistics[episode]


def play(length: int = 160) -> Episode:
    observations = torch.randn(length, 96).cumsum(0) / 8
    return Episode(observations, torch.cos(observations[:, 0]))


torch.manual_seed(8)
critic = nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _step in range(600):
    episode = play()
    targets = statistics_of(episode).normalized()
    values = critic(episode.observations)[:, 0]
    loss = nn.functional.mse_loss(values, targets) + 0.01 * statistics_of(episode).returns.var()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
