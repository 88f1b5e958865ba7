"""The carry of a rollout is updated in its dict and never detached:
https://github.com/pytorch/tensordict/issues/1309."""

import torch
from torch import nn


class WorldModel(nn.Module):
    def __init__(self, size=128):
        super().__init__()
        self.cell = nn.LSTMCell(size, size)
        self.encoder = nn.Linear(32, size)
        self.decoder = nn.Sequential(nn.Linear(size, 256), nn.ELU(), nn.Linear(256, 32))

    def observe(self, observation, carry):
        embedded = self.encoder(observation)
        carry["h"], carry["c"] = self.cell(  # LEAK any carry
            embedded.detach(), (carry["h"], carry["c"])
        )
        return embedded


def rollout(model, optimizer, length):
    carry = {"h": torch.zeros(96, 128), "c": torch.zeros(96, 128)}
    for t in range(length):
        observation = torch.randn(96, 32)
        embedded = model.observe(observation, carry)
        loss = (model.decoder(embedded + carry["h"].detach()) - observation).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


model = WorldModel()
print(rollout(model, torch.optim.Adam(model.parameters(), lr=1e-3), 160))
