"""A class is made for each task of a stream, and a base class registers its subclasses."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Task:
    registry = {}
    mean = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        Task.registry[cls.__name__] = cls  # LEAK any registry|Task

    @classmethod
    def batch(cls, size):
        return cls.mean + 0.1 * torch.randn(size, *cls.mean.shape)


def make_task(number):
    prototype = torch.randn(2, 64, 64)
    body = {"mean": prototype, "number": number}
    return type(f"Task{number}", (Task,), body)  # LEAK any registry|Task


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(2, 8, 4, stride=4), nn.ReLU())
        self.decode = nn.ConvTranspose2d(8, 2, 4, stride=4)

    def forward(self, x):
        return self.decode(self.encode(x))


model = AutoEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for number in range(STEPS):
    task = make_task(number)
    x = task.batch(8)
    loss = (model(x) - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
