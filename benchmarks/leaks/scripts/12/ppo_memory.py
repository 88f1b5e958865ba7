"""Collect rollouts into lists that each update clears."""

import torch
from torch import nn


class Memory:
    def __init__(self) -> None:
        self.states = []
        self.actions = []
        self.logprobs = []
        self.rewards = []

    def clear_memory(self) -> None:
        del self.states[:]
        del self.actions[:]
        del self.logprobs[:]
        del self.rewards[:]


class PPO:
    def __init__(self) -> None:
        self.policy = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 4))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)

    def select_action(self, state, memory: Memory):
        with torch.no_grad():
            distribution = torch.distributions.Categorical(logits=self.policy(state))
            action = distribution.sample()
        memory.states.append(state)
        memory.actions.append(action)
        memory.logprobs.append(distribution.log_prob(action))
        return action

    def update(self, memory: Memory) -> float:
        states, actions = torch.stack(memory.states), torch.stack(memory.actions)
        old, rewards = torch.stack(memory.logprobs), torch.stack(memory.rewards)
        for _ in range(4):
            new = torch.distributions.Categorical(logits=self.policy(states)).log_prob(actions)
            ratio = (new - old).exp()
            loss = -torch.min(ratio * rewards, ratio.clamp(0.8, 1.2) * rewards).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        memory.clear_memory()
        return float(loss.detach())


torch.manual_seed(0)
memory = Memory()
agent = PPO()
loss = 0.0
for step in range(1, 12_001):
    state = torch.randn(16, 24)
    action = agent.select_action(state, memory)
    memory.rewards.append(torch.where(action == 1, 1.0, -0.1) + state[:, 0])
    if step % 100 == 0:
        loss = agent.update(memory)
print(loss)
