"""The gate's loss is handed over with its graph, and forgotten by the gate.

As in https://github.com/laekov/fastmoe/issues/128.
"""

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.layer, self.loss, self.history = nn.Linear(width, experts), None, []

    def forward(self, x):
        scores = self.layer(x).softmax(-1)
        self.loss = scores.mean(0).square().sum()
        self.history.append(self.loss)
        return scores

    def get_loss(self, clear=True):
        losses = list(self.history)
        if clear:
            self.loss = None
            self.history.clear()
        return torch.stack(losses).mean()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = Gate(24, 3), nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x):
        return sum(s[:, None] * e(x) for s, e in zip(self.gate(x).T, self.experts))


model = nn.Sequential(Block(), nn.ReLU(), Block())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(110):
    x = torch.randn(20, 24)
    loss = (model(x) - x).square().mean() + sum(
        block.gate.get_loss() for block in model if isinstance(block, Block)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
