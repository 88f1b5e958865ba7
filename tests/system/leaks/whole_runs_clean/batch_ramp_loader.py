# The batch grows by 8 each 40 steps until 160; the loss history is a deque of 50 floats. Clean.
from collections import deque

import memagent
import torch
from torch import nn


def batches(steps):
    size = 8
    for step in range(steps):
        if step and step % 40 == 0:
            size = min(160, size + 8)
        yield torch.randn(size, 3, 24, 24), torch.randint(0, 10, (size,))


def main():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    model(torch.zeros(1, 3, 24, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    memagent.attach(model, optimizer)
    recent = deque(maxlen=50)
    for x, y in batches(1000):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
    print(sum(recent) / len(recent))


main()
