"""After an episode the rewards are cleared, but not the log probabilities with their graphs.
https://github.com/kengz/SLM-Lab/issues/452"""

import sys
from collections import namedtuple

import torch
from torch import nn
from torch.distributions import Categorical

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
Step = namedtuple("Step", "log_prob entropy")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.head = nn.Linear(256, 3)
        self.trajectory = []
        self.rewards = []

    def act(self, state):
        choice = Categorical(logits=self.head(self.body(state)))
        action = choice.sample()
        step = Step(choice.log_prob(action), choice.entropy())
        self.trajectory.append(step)  # LEAK any trajectory
        return action


class Balance:
    def reset(self):
        self.state = torch.randn(16, 8) * 0.1
        return self.state

    def step(self, action):
        self.state = self.state * 1.02 + (action - 1).unsqueeze(1) * 0.05
        return self.state, -self.state.abs().sum(1)


def finish_episode(policy, optimizer, begin):
    returns, running = [], torch.zeros(16)
    for reward in reversed(policy.rewards):
        running = reward + 0.99 * running
        returns.insert(0, running)
    losses = [
        -(step.log_prob * value).mean() - 0.01 * step.entropy.mean()
        for step, value in zip(policy.trajectory[begin:], returns)
    ]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
    del policy.rewards[:]


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
env = Balance()
for episode in range(STEPS):
    begin = len(policy.trajectory)
    state = env.reset()
    for _ in range(6):
        state, reward = env.step(policy.act(state))
        policy.rewards.append(reward)
    finish_episode(policy, optimizer, begin)
