import weakref

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Embedding:
    def __init__(self):
        self.tensor = torch.randn(256, 128)


cache = weakref.WeakValueDictionary()
for step in range(70):
    embedding = Embedding()
    cache[step] = embedding
    train_step(model(embedding.tensor).square().mean())
