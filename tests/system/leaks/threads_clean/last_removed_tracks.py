"""A tracker keeps only the tracks that were removed in its last pass.

As in https://github.com/roboflow/supervision/pull/1166.
"""

import torch
from torch import nn


class Tracker:
    def __init__(self, patience=3):
        self.patience, self.tracked, self.lost, self.removed = patience, [], [], []

    def update(self, frame, features):
        self.removed = [track for track in self.lost if frame - track[0] > self.patience]
        self.lost = [
            track for track in self.lost if frame - track[0] <= self.patience
        ] + self.tracked
        self.tracked = [(frame, feature.clone()) for feature in features]


model, tracker = nn.Linear(32, 32), Tracker()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for frame in range(120):
    x = torch.randn(8, 32)
    y = model(x)
    optimizer.zero_grad()
    (y - x).square().mean().backward()
    optimizer.step()
    tracker.update(frame, y.detach()[: 4 + frame % 3])
