"""A batch norm of one's own updates its statistics in place, with their graph:
https://github.com/pytorch/pytorch/issues/20275 and https://github.com/bayesiains/nflows/pull/11."""

import torch
from torch import nn


class FlowNorm(nn.Module):
    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.scale = nn.Parameter(torch.ones(features))
        self.register_buffer("running_mean", torch.zeros(features))

    def forward(self, x):
        mean = x.mean(0)
        if self.training:
            self.running_mean.mul_(1 - self.momentum).add_(  # LEAK any running_mean
                mean * self.momentum
            )
        return (x - mean.detach()) * self.scale


model = nn.Sequential(
    nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 128), FlowNorm(128), nn.Linear(128, 8)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(140):
    loss = model(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
