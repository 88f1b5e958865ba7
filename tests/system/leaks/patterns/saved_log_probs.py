"""REINFORCE without clearing the episode: https://github.com/IBM/mi-prometheus/issues/111 has compounding losses."""

from torch.distributions import Categorical

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
        self.saved_log_probs = []
        self.rewards = []

    def act(self, observation):
        distribution = Categorical(logits=self.net(observation))
        action = distribution.sample()
        self.saved_log_probs.append(  # LEAK list Policy.saved_log_probs
            distribution.log_prob(action)
        )
        return action


policy = Policy()
for step in range(70):
    action = policy.act(torch.randn(64, 128))
    policy.rewards.append(1.0)
    train_step(-policy.saved_log_probs[-1].mean())
