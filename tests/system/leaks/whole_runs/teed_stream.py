"""One stream of samples, split in two: training reads all of it, statistics are taken now and then.

As in: python/cpython#138765; kipoi#277.
"""

import argparse
import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def samples(seed, size=256, columns=80):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((columns, 4))
    while True:
        x = rng.standard_normal((size, columns))
        yield x, (x @ weights).argmax(1)


class Statistics:
    """Mean and deviation of the columns; looks at one batch per report."""

    def __init__(self, stream):
        self.stream = stream

    def report(self):
        x, _ = next(self.stream)
        return float(x.mean()), float(x.std())


class Net(nn.Module):
    def __init__(self, columns=80, width=320):
        super().__init__()
        self.norm = nn.BatchNorm1d(columns)
        self.net = nn.Sequential(
            nn.Linear(columns, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 4),
        )

    def forward(self, x):
        return self.net(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--report-every", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training, inspection = itertools.tee(samples(41))  # LEAK any tee|inspection|training|stream
    statistics = Statistics(inspection)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, (x, y) in enumerate(
        itertools.islice(training, args.steps)
    ):  # LEAK any tee|inspection|training|stream
        loss = F.cross_entropy(model(torch.from_numpy(x).float()), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.report_every == 0:
            mean, deviation = statistics.report()
            print(
                f"step {step} loss {loss.item():.4f} data {mean:+.3f} +- {deviation:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
