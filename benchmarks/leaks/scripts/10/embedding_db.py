"""Siamese training; embeddings of each batch go to a scratch database for the nearest-neighbour report.

The pattern of UoA-CARES/cares_reinforcement_learning#75 (a record that grows), with sqlite as in many trackers.
"""
import sqlite3

import torch
from torch import nn


class EmbeddingStore:
    def __init__(self):
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE embedding (step INTEGER, label INTEGER, vector BLOB)")

    def add(self, step, labels, vectors):
        rows = [(step, int(c), v.numpy().tobytes()) for c, v in zip(labels, vectors)]
        self.db.executemany("INSERT INTO embedding VALUES (?, ?, ?)", rows)
        self.db.commit()

    def latest(self, step):
        query = "SELECT label, COUNT(*) FROM embedding WHERE step = ? GROUP BY label ORDER BY label LIMIT 3"
        return self.db.execute(query, (step,)).fetchall()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 512))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=-1)


def batches(count, size=96):
    centres = torch.randn(10, 512)
    for _ in range(count):
        label = torch.randint(0, 10, (size,))
        yield label, centres[label] + torch.randn(size, 512), centres[label] + torch.randn(size, 512)


torch.manual_seed(4)
torch.set_num_threads(1)
tower, store = Tower(), EmbeddingStore()
optimizer = torch.optim.Adam(tower.parameters(), lr=3e-4)
for step, (label, left, right) in enumerate(batches(480)):
    a, b = tower(left), tower(right)
    logits = a @ b.T / 0.1
    loss = nn.functional.cross_entropy(logits, torch.arange(len(a)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    store.add(step, label, a.detach())
    if step % 80 == 0:
        print(step, round(loss.item(), 4), store.latest(step))
