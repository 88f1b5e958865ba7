"""Each instance stays in its method's cache: https://github.com/mozilla/mozci/issues/189."""

import functools

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Episode:
    def __init__(self, length):
        self.observations = torch.randn(length, 128)

    @functools.cache  # LEAK cache Episode.returns
    def returns(self):
        return self.observations.sum(1).flip(0).cumsum(0)


def main():
    for step in range(70):
        episode = Episode(256)
        loss = (model(episode.observations).sum(1) * episode.returns()).mean()
        train_step(loss)


main()
