# Thread: ray-project/ray#22678 (AlphaStar development) and Unity-Technologies/ml-agents#1975 (ghosts).
# Pattern: each 20 steps the learner leaves a frozen historical copy in the league; the shared payoff
# table keeps all players, and no player retires.
# Expected: the append in Payoff.add_player, holder `_players`.
import copy
import random
from collections import defaultdict

import memagent
import torch
from torch import nn


class Payoff:
    def __init__(self):
        self._players = []
        self._wins = defaultdict(lambda: 0)
        self._games = defaultdict(lambda: 0)

    def add_player(self, player):
        self._players.append(player)  # LEAK any _players

    @property
    def players(self):
        return self._players

    def update(self, home, away, won):
        self._games[home.name, away.name] += 1
        self._wins[home.name, away.name] += won


class Historical:
    def __init__(self, agent, payoff, name):
        self.agent = agent
        self.payoff = payoff
        self.name = name


class MainPlayer:
    name = "main"

    def __init__(self, agent, payoff):
        self.agent, self.payoff = agent, payoff
        self._checkpoint_step = 0

    def get_match(self):
        return random.choice(self.payoff.players)

    def ready_to_checkpoint(self, step):
        return step - self._checkpoint_step >= 20

    def checkpoint(self, step):
        self._checkpoint_step = step
        frozen = copy.deepcopy(self.agent).requires_grad_(False)  # ALLOCATES
        return Historical(frozen, self.payoff, f"main-{step}")


class League:
    def __init__(self, agent):
        self._payoff = Payoff()
        self._main = MainPlayer(agent, self._payoff)
        self._payoff.add_player(self._main.checkpoint(0))

    def get_match(self):
        return self._main, self._main.get_match()

    def step(self, step):
        if self._main.ready_to_checkpoint(step):
            self._payoff.add_player(self._main.checkpoint(step))


def main():
    agent = nn.Sequential(
        nn.Linear(128, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 1)
    )
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-4)
    memagent.attach(agent, optimizer)
    league = League(agent)
    for step in range(1, 1001):
        home, away = league.get_match()
        state = torch.randn(32, 128)
        with torch.no_grad():
            rival = away.agent(state)
        loss = nn.functional.softplus(rival - home.agent(state)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        league._payoff.update(home, away, loss.item() < 0.69)
        league.step(step)


main()
