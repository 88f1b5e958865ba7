from typing import NamedTuple

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Transition(NamedTuple):
    observation: torch.Tensor
    action: torch.Tensor


class Agent:
    def __init__(self):
        self.memory = []

    def learn(self, observation):
        action = model(observation)
        train_step(action.square().mean())
        self.memory = self.memory + [  # LEAK list Agent.memory
            Transition(observation, action.detach())
        ]


agent = Agent()
for step in range(70):
    agent.learn(torch.randn(256, 128))
