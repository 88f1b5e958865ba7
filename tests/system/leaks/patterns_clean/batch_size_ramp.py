"""The batch size rises linearly: each batch has more rows, tensors and objects than the last one."""

import torch
from torch import nn


class Example:
    def __init__(self, x, label):
        self.x, self.label = x, label


def load(step):
    return [Example(torch.randn(200), i % 5) for i in range(16 + 2 * step)]


model = nn.Sequential(nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(120):
    examples = load(step)
    x = torch.stack([example.x for example in examples])
    y = torch.tensor([example.label for example in examples])
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
