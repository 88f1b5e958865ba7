"""Self-play: a policy learns against frozen copies of itself from a league."""

import copy
import random

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, hidden: int = 320) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(72, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 9)
        )

    def forward(self, board):
        return torch.distributions.Categorical(logits=self.net(board))


class League:
    def __init__(self, first: Policy) -> None:
        self.members = [copy.deepcopy(first)]
        self.ratings = [1000.0]

    def admit(self, policy: Policy) -> None:
        frozen = copy.deepcopy(policy).eval()
        self.members.append(frozen)
        self.ratings.append(self.ratings[-1] + 1.0)

    def opponent(self) -> Policy:
        return random.choices(self.members[-50:], weights=self.ratings[-50:])[0]


def play(policy: Policy, rival: Policy, games: int):
    board = torch.randn(games, 72)
    mine = policy(board)
    action = mine.sample()
    with torch.no_grad():
        answer = rival(-board).sample()
    reward = ((action - answer) % 9 < 4).float() * 2 - 1
    return mine.log_prob(action), reward


random.seed(0)
torch.manual_seed(0)
policy = Policy()
league = League(policy)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
for update in range(650):
    log_prob, reward = play(policy, league.opponent(), 512)
    loss = -(log_prob * (reward - reward.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 2 == 0:
        league.admit(policy)
print("members", len(league.members))
