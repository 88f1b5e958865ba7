import collections

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class MeanBank:
    def __init__(self):
        self.means = collections.defaultdict(list)

    def observe(self, features, labels):
        for label in labels.unique().tolist():
            rows = features[labels == label]
            self.means[label].append(rows)  # LEAK any MeanBank.means


memory = MeanBank()
for step in range(70):
    features = model[:2](torch.randn(512, 128))
    labels = torch.randint(0, 3, (512,))
    memory.observe(features.detach(), labels)
    train_step(features.square().mean())
