"""itertools.cycle keeps each batch: https://github.com/pytorch/pytorch/issues/23900."""

import itertools

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def loader():
    for index in range(100):
        yield torch.randn(512, 128)


def main():
    batches = itertools.cycle(loader())  # LEAK any batches
    for step in range(70):
        train_step(model(next(batches)).square().mean())


main()
