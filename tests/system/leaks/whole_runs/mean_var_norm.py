"""Small conv classifier with a home-made normalisation layer that tracks running statistics.

As in: pytorch/pytorch#20275.
"""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RunningNorm(nn.Module):
    """Normalises by the batch mean and keeps running statistics for evaluation."""

    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            centred = x - mean
            var = centred.pow(2).mean(0)
            self.running_mean = (
                1 - self.momentum
            ) * self.running_mean + self.momentum * mean.detach()
            self.running_var = (
                1 - self.momentum
            ) * self.running_var + self.momentum * var  # LEAK any running_var
            scale = var.detach().add(1e-5).rsqrt()
        else:
            mean, scale = self.running_mean, self.running_var.add(1e-5).rsqrt()
        return (x - mean) * scale * self.weight + self.bias


class Classifier(nn.Module):
    def __init__(self, inputs, width, classes):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.norm = RunningNorm(width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.second(x))
        return self.head(x)


def make_batch(size, inputs, classes, generator):
    x = torch.randn(size, inputs, generator=generator)
    y = torch.randint(0, classes, (size,), generator=generator)
    x[torch.arange(size), y] += 3.0
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=192)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)

    model = Classifier(256, 512, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = time.time()
    for step in range(args.steps):
        x, y = make_batch(args.batch, 256, 32, generator)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
