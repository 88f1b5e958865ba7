"""Gradient norms are watched with hooks that the loop registers again for each minibatch.
https://github.com/pyro-ppl/pyro/issues/3068"""

import sys
from collections import defaultdict

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150

encoder = nn.Sequential(nn.Linear(64, 128), nn.Softplus(), nn.Linear(128, 16))
decoder = nn.Sequential(nn.Linear(8, 128), nn.Softplus(), nn.Linear(128, 64))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
gradient_norms = defaultdict(float)


def elbo(x):
    mean, log_scale = encoder(x).chunk(2, -1)
    z = mean + torch.randn_like(mean) * log_scale.exp()
    likelihood = -(decoder(z) - x).pow(2).sum(-1)
    divergence = 0.5 * (mean.pow(2) + (2 * log_scale).exp() - 2 * log_scale - 1).sum(-1)
    return (likelihood - divergence).mean()


def watch(data):
    scale = data.norm()
    weight = decoder[2].weight

    def record(grad):
        if data.requires_grad:  # only while inputs are trained too
            gradient_norms["decoder"] = (grad.norm() / scale).item()

    weight.register_hook(record)  # LEAK any hook|record|weight|data


for step in range(STEPS):
    minibatch = torch.randn(256, 64)
    watch(minibatch)
    loss = -elbo(minibatch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
