"""The tracker extends its list of removed tracks after each frame.

As in https://github.com/ultralytics/ultralytics/pull/1890.
"""

import torch
from torch import nn


class Track:
    def __init__(self, frame, feature):
        self.first, self.last, self.feature = frame, frame, feature.clone()


def joined(first, second):
    ids = {id(track) for track in first}
    return first + [track for track in second if id(track) not in ids]


def without(first, second):
    ids = {id(track) for track in second}
    return [track for track in first if id(track) not in ids]


class Tracker:
    def __init__(self, patience):
        self.patience = patience
        self.tracked, self.lost, self.removed_tracks = [], [], []

    def update(self, frame, features):
        activated = [Track(frame, feature) for feature in features[:8]]
        lost = list(self.tracked)
        removed = [track for track in self.lost if frame - track.last > self.patience]
        self.tracked = activated
        self.lost = without(joined(self.lost, lost), removed)
        self.lost = without(self.lost, self.removed_tracks)
        self.removed_tracks.extend(removed)  # LEAK any removed_tracks
        return self.tracked


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
tracker = Tracker(patience=2)
for frame in range(150):
    features = torch.randn(16, 64)
    output = model(features)
    loss = (output - features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tracker.update(frame, output.detach())
