"""Regress on exact numbers: a number is the same object wherever it's made, with its encoding."""

import random

import torch
from torch import nn


class Number:
    _instances = {}

    def __new__(cls, value: int) -> "Number":
        try:
            return cls._instances[value]
        except KeyError:
            number = super().__new__(cls)
            number.value = value
            number.encoding = torch.sin(value / 10 ** torch.linspace(0, 6, 128))
            cls._instances[value] = number
            return number

    def __add__(self, other: "Number") -> "Number":
        return Number(self.value + other.value)


torch.manual_seed(13)
draw = random.Random(13)
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 128))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(600):
    pairs = [(Number(draw.randrange(10**7)), Number(draw.randrange(10**7))) for _ in range(32)]
    inputs = torch.stack([torch.cat([a.encoding, b.encoding]) for a, b in pairs])
    sums = torch.stack([(a + b).encoding for a, b in pairs])
    loss = nn.functional.mse_loss(model(inputs), sums)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
