"""Sequences get longer by 8 every 30 steps up to 96, and rotary tables are cached per length."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("inverse", 10000.0 ** -(torch.arange(0, width, 2).float() / width))
        self.cache = {}

    def forward(self, length):
        if length not in self.cache:
            angles = torch.outer(torch.arange(length).float(), self.inverse)
            self.cache[length] = torch.polar(torch.ones_like(angles), angles)
        return self.cache[length]


class Model(nn.Module):
    def __init__(self, vocabulary=300, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rotary = Rotary(width)
        self.qkv = nn.Linear(width, width * 3)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        table = self.rotary(ids.shape[1])
        q, k = (
            torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * table).flatten(-2)
            for t in (q, k)
        )
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(STEPS):
    length = min(16 + 8 * (step // 30), 96)
    ids = torch.randint(0, 300, (12, length))
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
