# Tracking with a bounded window per track; the tracks themselves are never dropped.
# https://github.com/talmolab/dreem/pull/141
from collections import defaultdict, deque
from itertools import count

import torch
from torch import nn


class TrackQueue:
    def __init__(self, window_size=8, max_gap=3):
        self.window_size, self.max_gap = window_size, max_gap
        self._queues = defaultdict(lambda: deque(maxlen=self.window_size))
        self._gaps = {}
        self._ids = count()

    def update(self, embeddings):
        seen = set()
        for embedding in embeddings:
            track = self.match(embedding)
            self._queues[track].append(embedding)  # LEAK any TrackQueue._queues
            self._gaps[track] = 0
            seen.add(track)
        for track in self._gaps.keys() - seen:
            self._gaps[track] += 1
        return seen

    def match(self, embedding):
        alive = [t for t, gap in self._gaps.items() if gap <= self.max_gap]
        for track in alive[-6:]:
            if (
                torch.cosine_similarity(
                    self._queues[track][-1].flatten(), embedding.flatten(), dim=0
                )
                > 0.6
            ):
                return track
        return next(self._ids)


encoder = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
head = nn.Linear(32 * 16 * 16, 4)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3)
tracker = TrackQueue()

for frame in range(150):
    crops = torch.randn(10, 3, 64, 64)
    features = encoder(crops)
    boxes = head(features.flatten(1))
    loss = nn.functional.smooth_l1_loss(boxes, torch.rand(10, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    centred = features.detach() - features.detach().mean(dim=0)
    tracker.update([f.clone() for f in centred])
