"""A list beside a pool that fills up: their tensors are of one group."""

from collections import deque

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def main():
    pool = deque(maxlen=10_000)
    outputs = []
    for _ in range(70):
        inputs = torch.randn(16, 32)
        pool.append((inputs, torch.randn(16, 8)))
        output = model(inputs)
        outputs.append(output.detach())  # LEAK list outputs
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()


main()
