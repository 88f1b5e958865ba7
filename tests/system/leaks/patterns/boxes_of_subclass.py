"""Detections are tensors of a subclass, and all of them are kept."""

import torch
from torch import nn


class Boxes(torch.Tensor):
    @property
    def area(self):
        return (self[:, 2] - self[:, 0]) * (self[:, 3] - self[:, 1])


class Evaluator:
    def __init__(self):
        self.predictions = []

    def process(self, boxes):
        self.predictions.append(boxes)  # LEAK any predictions


evaluator = Evaluator()
head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(140):
    x = torch.randn(3000, 32)
    out = head(x)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    evaluator.process(out.detach().clone().as_subclass(Boxes))
