"""All trackers share one dict by mistake: https://github.com/talmolab/sleap-nn/issues/574."""

import itertools

import torch
from torch import nn

ids = itertools.count()


class Track:
    __slots__ = ("name", "embedding")

    def __init__(self, name, embedding):
        self.name, self.embedding = name, embedding


class Tracker:
    _track_objects: dict = {}

    def __init__(self, threshold=0.5):
        self.threshold = threshold

    def track(self, embeddings):
        tracks = []
        for row in embeddings.split(32):
            number = next(ids)
            if number not in self._track_objects:
                self._track_objects[number] = Track(  # LEAK any Tracker._track_objects
                    f"track_{number}", row.clone()
                )
            tracks.append(self._track_objects[number])
        return tracks


backbone = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-4)


def process_video(frames):
    tracker = Tracker()
    total = 0
    for frame in frames:
        out = backbone(frame)
        loss = (out.mean(0) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += len(tracker.track(out.detach()))
    return total


for video in range(15):
    print(video, process_video(torch.randn(10, 384, 128)))
