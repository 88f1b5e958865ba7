"""Render grids of several sizes: a graph is compiled for each size, and a grid made for each."""

import random
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn


@cache
def grid(height: int, width: int):
    rows = torch.linspace(-1, 1, height)[:, None].expand(height, width)
    columns = torch.linspace(-1, 1, width)[None].expand(height, width)
    return torch.stack([rows, columns, rows * columns, rows**2], -1).reshape(-1, 4)


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 3))
        self.graphs = {}

    def forward(self, height: int, width: int):
        if height not in self.graphs:
            self.graphs[height] = torch.compile(self.layers, backend="eager", dynamic=True)
        return self.graphs[height](grid(height, width))


def main() -> None:
    random.seed(11)
    torch.manual_seed(11)
    field = Field()
    optimizer = torch.optim.Adam(field.parameters())
    for step in range(1_000):
        height, width = random.randrange(96, 110), random.randrange(64, 112)
        colours = field(height, width)
        loss = F.mse_loss(colours, grid(height, width)[:, :3].cos())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(grid.cache_info().currsize, f"{loss.item():.6f}")


main()
