"""Collect rollouts in lists of an agent, and learn from them at every 64th step of the world."""

import torch
from torch import nn


class Agent:
    def __init__(self) -> None:
        self.policy = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.forget()

    def forget(self) -> None:
        self.states, self.log_probabilities, self.rewards = [], [], []

    def act(self, state: torch.Tensor) -> torch.Tensor:
        chosen = torch.distributions.Categorical(logits=self.policy(state))
        action = chosen.sample()
        self.states.append(state)
        self.log_probabilities.append(chosen.log_prob(action))
        return action

    def learn(self) -> float:
        returns = torch.stack(self.rewards).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(self.log_probabilities) * returns).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.forget()
        return loss.item()


torch.manual_seed(25)
agent = Agent()
state = torch.randn(64, 32)
for step in range(16_000):
    action = agent.act(state)
    state = torch.tanh(state + 0.1 * torch.randn(64, 32))
    agent.rewards.append((action == 1).float())
    if len(agent.rewards) == 64:
        loss = agent.learn()
print(f"{loss:.6f}")
