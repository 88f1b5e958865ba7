# functools.lru_cache(maxsize=180) over position biases of ragged shapes: full after ~500 of 1000 steps.
import random
from functools import lru_cache

import memagent
import torch
from torch import nn


@lru_cache(maxsize=180)
def distance_bias(height, width):
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    points = torch.stack([ys.flatten(), xs.flatten()], 1).float()
    return -torch.cdist(points, points)


class BiasedAttention(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, height, width):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 32**0.5 + distance_bias(height, width)
        return self.out(scores.softmax(-1) @ v)


def main():
    model = BiasedAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for _ in range(850):
        h, w = random.randint(4, 24), random.randint(4, 16)
        x = torch.randn(2, h * w, 32)
        loss = (model(x, h, w) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
