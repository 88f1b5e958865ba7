"""A quality-diversity archive takes new cells until all 144 have an elite, then replaces them."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class Archive:
    def __init__(self, bins=12):
        self.bins = bins
        self.elites = {}

    def cell(self, descriptor):
        scaled = (descriptor.clamp(0, 0.999) * self.bins).long().tolist()
        return tuple(scaled)

    def add(self, solution, descriptor, fitness):
        cell = self.cell(descriptor)
        held = self.elites.get(cell)
        if held is None or fitness > held[0]:
            self.elites[cell] = (fitness, solution.clone())


surrogate = nn.Sequential(nn.Linear(4096, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(surrogate.parameters(), lr=1e-3)
archive = Archive()
for step in range(STEPS):
    parents = [elite for _, elite in list(archive.elites.values())[:4]] or [torch.rand(4096)]
    children = torch.stack(
        [parents[step % len(parents)] + 0.3 * torch.randn(4096) for _ in range(8)]
    )
    fitness = -children.pow(2).mean(1)
    for child, value in zip(children, fitness.tolist()):
        archive.add(child, torch.rand(2), value)
    loss = (surrogate(children).squeeze(1) - fitness).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
