"""Per-class embeddings are gathered over an epoch for prototypes, then started anew.

Accumulators reset each epoch (saw-tooth).
"""

from collections import defaultdict

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
CLASSES = 16


class PrototypeAccumulator:
    def __init__(self):
        self.reset()

    def reset(self):
        self.rows = defaultdict(list)

    def update(self, embeddings, labels):
        for c in labels.unique().tolist():
            self.rows[c].append(embeddings[labels == c].detach().clone())

    def compute(self):
        return torch.stack([torch.cat(self.rows[c]).mean(0) for c in range(CLASSES)])


body = nn.Sequential(
    nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 160)
)
head = nn.Linear(160, CLASSES)
params = [*body.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(params, lr=5e-4)
centers = torch.randn(CLASSES, 60)
accumulator = PrototypeAccumulator()
for epoch in range(9):
    for _ in range(100):
        y = torch.randint(0, CLASSES, (448,))
        x = centers[y] + 1.5 * torch.randn(448, 60)
        z = body(x)
        loss = nn.functional.cross_entropy(head(z), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accumulator.update(z, y)
    prototypes = accumulator.compute()
    nearest = torch.cdist(z.detach(), prototypes).argmin(1)
    print(epoch, round(loss.item(), 4), "prototype accuracy", (nearest == y).float().mean().item())
    accumulator.reset()
