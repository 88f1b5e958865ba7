"""Train a policy on simulated battles; rewards are differences to the last value of a battle."""

import itertools
import random

import torch
from torch import nn

COUNTER = itertools.count()


class Battle:
    def __init__(self, turns: int) -> None:
        self.tag = f"battle-{next(COUNTER)}"
        self.events = []
        for turn in range(turns):
            self.events.append((turn, f"move|{turn}|{random.random():.6f}", random.random()))

    def observation(self) -> list:
        return [event[2] for event in self.events[-64:]]

    def value(self) -> float:
        return sum(event[2] for event in self.events[-10:]) / 10


class EnvPlayer:
    def __init__(self) -> None:
        self._reward_buffer = {}
        self.current = []

    def reset(self, count: int) -> None:
        self.current = [Battle(turns=120) for _ in range(count)]

    def reward(self, battle: Battle) -> float:
        before = self._reward_buffer.get(battle, 0.0)
        now = battle.value()
        self._reward_buffer[battle] = now
        return now - before


def main() -> None:
    random.seed(0)
    player = EnvPlayer()
    policy = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for _ in range(650):
        player.reset(24)
        obs = torch.tensor([battle.observation() for battle in player.current])
        choice = torch.distributions.Categorical(logits=policy(obs))
        action = choice.sample()
        reward = torch.tensor([player.reward(battle) for battle in player.current])
        loss = -(choice.log_prob(action) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
