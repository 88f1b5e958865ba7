"""Train on sequences that get longer; the table of rotary angles doubles whenever it is too short."""

import torch
import torch.nn.functional as F
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.table = torch.empty(0, dim // 2, 2)

    def extend(self, length: int) -> None:
        size = max(32, len(self.table))
        while size < length:
            size *= 2
        angles = torch.outer(torch.arange(size), 10000 ** -torch.linspace(0, 1, self.dim // 2))
        self.table = torch.stack([angles.cos(), angles.sin()], dim=-1)

    def forward(self, x):
        if x.shape[1] > len(self.table):
            self.extend(x.shape[1])
        cos, sin = self.table[: x.shape[1]].unbind(-1)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Model(nn.Module):
    def __init__(self, dim: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, dim)
        self.rotary = Rotary(dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k = self.rotary(self.q(x)), self.rotary(self.k(x))
        return self.out(x + F.scaled_dot_product_attention(q, k, self.v(x), is_causal=True))


def length_at(step: int) -> int:
    return min(32 + 32 * (step // 30), 320)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(650):
    tokens = torch.randint(0, 64, (16, length_at(step) + 1))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
