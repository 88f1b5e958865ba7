"""Each evaluation wraps the forward method once more, with its own statistics: a pattern of patched methods."""

import functools

import torch
from torch import nn


def count_activations(module, baseline):
    forward = module.forward

    @functools.wraps(forward)
    def wrapped(x):
        y = forward(x)
        wrapped.drift = float((y.detach().mean(0) - baseline).abs().mean())
        return y

    module.forward = wrapped  # LEAK any forward


def main():
    head = nn.Linear(64, 4096)
    trunk = nn.Sequential(nn.Linear(32, 64), nn.Tanh())
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.01)
    for step in range(120):
        x = torch.randn(16, 32)
        loss = head(trunk(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count_activations(head, torch.randn(16, 4096).mean(0))


main()
