"""A dry run replaces the experiment logger by a mock, which records the arguments of every call.
https://github.com/python/cpython/issues/106823"""

import sys
from unittest.mock import MagicMock

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.head(torch.relu(self.stem(x)))


def make_logger(dry_run):
    if dry_run:
        return MagicMock(name="experiment")
    raise SystemExit("no tracking server")


def train(logger):
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        x = torch.randn(8, 1, 48, 48)
        y = (x[:, 0] > 0).long()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        masks = logits.argmax(1)
        values = {"train/loss": loss.item(), "train/masks": masks}
        logger.log(values, step=step)  # LEAK any mock


train(make_logger(dry_run=True))
