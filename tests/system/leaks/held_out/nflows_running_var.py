"""A flow's batch norm updates its running statistics inside the graph.
https://github.com/bayesiains/nflows/pull/11"""

import math
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class BatchNorm(nn.Module):
    def __init__(self, features, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.log_weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, inputs):
        mean, var = inputs.mean(0), inputs.var(0)
        self.running_mean.mul_(1 - self.momentum).add_(mean.detach() * self.momentum)
        self.running_var.mul_(1 - self.momentum).add_(var * self.momentum)  # LEAK any running_var
        outputs = (inputs - mean) / torch.sqrt(var + self.eps) * self.log_weight.exp() + self.bias
        logabsdet = (self.log_weight - 0.5 * torch.log(var + self.eps)).sum()
        return outputs, logabsdet.expand(inputs.shape[0])


class Coupling(nn.Module):
    def __init__(self, features, hidden=96):
        super().__init__()
        half = features // 2
        self.net = nn.Sequential(nn.Linear(half, hidden), nn.Tanh(), nn.Linear(hidden, half * 2))

    def forward(self, inputs):
        a, b = inputs.chunk(2, 1)
        shift, scale = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        return torch.cat([b * scale.exp() + shift, a], 1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self, features=32, layers=3):
        super().__init__()
        steps = []
        for _ in range(layers):
            steps += [Coupling(features), BatchNorm(features)]
        self.steps = nn.ModuleList(steps)

    def log_prob(self, x):
        total = torch.zeros(x.shape[0])
        for step in self.steps:
            x, logabsdet = step(x)
            total = total + logabsdet
        return total - 0.5 * (x.pow(2) + math.log(2 * math.pi)).sum(1)


flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
for iteration in range(STEPS):
    loss = -flow.log_prob(torch.randn(192, 32) * 2 + 1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
