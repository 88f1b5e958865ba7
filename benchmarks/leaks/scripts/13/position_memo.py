"""Translate sentences of many lengths: tables of positions are made once for each pair."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Positions(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._tables = {}

    def table(self, rows: int, columns: int):
        key = rows, columns
        try:
            return self._tables[key]
        except KeyError:
            distance = torch.arange(rows)[:, None] - torch.arange(columns)[None]
            scale = torch.exp(torch.arange(self.width) * (-math.log(100.0) / self.width))
            self._tables[key] = torch.sin(distance[..., None] * scale)
            return self._tables[key]

    def forward(self, queries, keys):
        return self.table(queries.shape[1], keys.shape[1])


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(width, width), nn.Linear(width, width)
        self.positions, self.bias = Positions(16), nn.Linear(16, 1)

    def forward(self, target, source):
        queries, keys = self.queries(target), self.keys(source)
        bias = self.bias(self.positions(queries, keys)).squeeze(-1)
        weights = torch.softmax(queries @ keys.transpose(1, 2) + bias, -1)
        return weights @ source


torch.manual_seed(3)
layer = Attention(64)
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
for step in range(1_500):
    rows, columns = torch.randint(30, 52, (2,)).tolist()
    source = torch.randn(32, columns, 64)
    target = torch.randn(32, rows, 64)
    loss = F.mse_loss(layer(target, source), target * 0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
