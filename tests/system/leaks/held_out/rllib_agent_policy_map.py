"""Each episode of a multi-agent worker enters (agent, episode) pairs that nobody takes out again.
https://github.com/ray-project/ray/pull/15815"""

import sys
import uuid

import numpy as np
import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
AGENTS = [f"agent_{n}" for n in range(24)]


class PolicyBinding:
    __slots__ = ("agent", "episode", "policy", "opened", "preferences")

    def __init__(self, agent, episode, policy, opened):
        self.agent = agent
        self.episode = episode
        self.policy = policy
        self.opened = opened
        self.preferences = [float(v) for v in np.random.rand(48)]


class Sampler:
    def __init__(self, policies):
        self.policies = policies
        self.agent_to_policy = {}
        self.collectors = {}

    def policy_for(self, agent, episode, step):
        key = (agent, episode)
        if key not in self.agent_to_policy:
            policy = self.policies[hash(agent) % len(self.policies)]
            binding = PolicyBinding(agent, episode, policy, step)
            self.agent_to_policy[key] = binding  # LEAK any agent_to_policy
        return self.agent_to_policy[key].policy

    def sample(self, step):
        episode = uuid.uuid4().hex
        for agent in AGENTS:
            self.collectors[agent] = np.random.randn(4, 16).astype("float32")
            self.policy_for(agent, episode, step)
        rows = np.concatenate([self.collectors.pop(agent) for agent in AGENTS])
        return torch.from_numpy(rows)


def learn(policy, optimizer, rows):
    log_probabilities = policy(rows).log_softmax(1)
    advantages = torch.randn(rows.shape[0])
    loss = -(log_probabilities[:, 0] * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


policies = [nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 5)) for _ in range(2)]
optimizers = [torch.optim.Adam(policy.parameters()) for policy in policies]
sampler = Sampler(policies)
for step in range(STEPS):
    rows = sampler.sample(step)
    learn(policies[step % 2], optimizers[step % 2], rows)
