"""Writes activations into a ring buffer that is allocated at once but touched slowly."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Ring:
    def __init__(self, slots, shape):
        self.data = np.zeros((slots, *shape), dtype=np.float32)
        self.position = 0

    def push(self, array):
        self.data[self.position % len(self.data)] = array
        self.position += 1

    def recent(self, count):
        last = [(self.position - 1 - i) % len(self.data) for i in range(count)]
        return self.data[last]


class Dynamics(nn.Module):
    def __init__(self, state=128, width=384):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, state),
        )

    def forward(self, x):
        return x + 0.1 * self.net(x)


def simulate(x, matrix, generator):
    return torch.tanh(x @ matrix) + 0.02 * torch.randn(x.shape, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1100)
    parser.add_argument("--slots", type=int, default=550)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(8)
    matrix = torch.randn(128, 128, generator=generator) / 8
    ring = Ring(args.slots, (256, 128))
    model = Dynamics()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(256, 128, generator=generator)
    for step in range(args.steps):
        y = simulate(x, matrix, generator)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ring.push(y.numpy())
        x = y
        if step % 100 == 0:
            spread = float(ring.recent(10).std())
            print(f"step {step} loss {loss.item():.5f} spread {spread:.3f}", flush=True)


if __name__ == "__main__":
    main()
