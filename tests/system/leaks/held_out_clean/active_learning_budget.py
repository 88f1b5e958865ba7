"""Each round of 25 steps labels 60 of the pool's most uncertain samples, until the budget is spent."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class Oracle:
    def __init__(self, budget):
        self.budget = budget

    def label(self, rows):
        self.budget -= len(rows)
        return (rows.mean(1) > 0).long()


class Labelled:
    def __init__(self):
        self.rows = []
        self.labels = []

    def __len__(self):
        return len(self.rows)

    def add(self, rows, labels):
        self.rows.extend(row.clone() for row in rows)
        self.labels.extend(labels.tolist())

    def batch(self, size):
        picks = torch.randint(0, len(self), (size,)).tolist()
        return torch.stack([self.rows[i] for i in picks]), torch.tensor(
            [self.labels[i] for i in picks]
        )


model = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
oracle, labelled = Oracle(budget=900), Labelled()
for step in range(STEPS):
    if step % 25 == 0 and oracle.budget > 0:
        pool = torch.randn(500, 1024)
        with torch.no_grad():
            margin = model(pool).softmax(1).max(1).values
        picks = pool[margin.argsort()[:60]]
        labelled.add(picks, oracle.label(picks))
    x, y = labelled.batch(32)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
