"""A moving average of a loss that isn't trained keeps every graph:
https://github.com/alexhernandezgarcia/gflownet/pull/133."""

import torch
from torch import nn


class Averages:
    def __init__(self, decay=0.99):
        self.decay = decay
        self.values = {}

    def update(self, name, value):
        old = self.values.get(name, 0.0)
        self.values[name] = self.decay * old + (1 - self.decay) * value  # LEAK any Averages.values

    def report(self):
        return {name: float(value) for name, value in self.values.items()}


class FlowNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 256), nn.LeakyReLU(), nn.Linear(256, 128))
        self.flow = nn.Linear(128, 8)
        self.reward = nn.Sequential(nn.Linear(128, 256), nn.LeakyReLU(), nn.Linear(256, 1))

    def forward(self, states):
        hidden = self.trunk(states)
        return self.flow(hidden), self.reward(hidden.detach())


net = FlowNetwork()
opt = torch.optim.Adam(net.parameters(), lr=3e-4)
averages = Averages()
for it in range(160):
    states = torch.randn(384, 32)
    flow, reward = net(states)
    flow_loss = flow.logsumexp(dim=1).square().mean()
    terminal_loss = (reward - states.sum(dim=1, keepdim=True)).square().mean()
    opt.zero_grad()
    flow_loss.backward()
    opt.step()
    averages.update("flow", flow_loss.item())
    averages.update("terminal", terminal_loss)
    if it % 40 == 39:
        print(it, averages.report())
