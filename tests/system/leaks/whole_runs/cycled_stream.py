"""Trains on an endless stream of augmented pictures with the usual infinite-loader trick.

As in: pytorch/pytorch#23900.
"""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset


class Pictures(IterableDataset):
    def __init__(self, count, size=32):
        self.count, self.size = count, size

    def __iter__(self):
        generator = torch.Generator().manual_seed(11)
        for _ in range(self.count):
            label = int(torch.randint(0, 10, (1,), generator=generator))
            picture = torch.randn(3, self.size, self.size, generator=generator) * 0.3
            picture[:, label * 3 : label * 3 + 3] += 1.0
            yield picture, label


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((8, 1)),
        )
        self.head = nn.Linear(32 * 8, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def infinite(loader):
    return itertools.cycle(loader)  # LEAK any cycle|stream


def train(steps, batch):
    loader = DataLoader(Pictures(1_000_000), batch_size=batch, num_workers=0)
    stream = infinite(loader)  # LEAK any cycle|stream
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    correct = seen = 0
    for step in range(steps):
        x, y = next(stream)  # LEAK any cycle|stream
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((logits.argmax(1) == y).sum())
        seen += len(y)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} acc {correct / seen:.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=24)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(options.steps, options.batch)
