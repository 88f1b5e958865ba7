"""An evaluation every 40 steps gathers predictions; those of the last three are kept."""

import sys
from collections import deque

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class Evaluator:
    def __init__(self, model):
        self.model = model
        self.recent = deque(maxlen=3)

    @torch.no_grad()
    def evaluate(self, step):
        self.model.eval()
        predictions, targets = [], []
        for _ in range(10):
            x = torch.randn(256, 80)
            predictions.append(self.model(x))
            targets.append(x[:, :40])
        self.model.train()
        predictions, targets = torch.cat(predictions), torch.cat(targets)
        self.recent.append((step, predictions, targets))
        return (predictions - targets).pow(2).mean().item()


model = nn.Sequential(nn.Linear(80, 200), nn.Dropout(0.1), nn.ReLU(), nn.Linear(200, 40))
optimizer = torch.optim.Adam(model.parameters())
evaluator = Evaluator(model)
for step in range(STEPS):
    x = torch.randn(64, 80)
    loss = (model(x) - x[:, :40]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 39:
        print(step, evaluator.evaluate(step))
