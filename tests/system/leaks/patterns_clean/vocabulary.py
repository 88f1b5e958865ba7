import random

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


embeddings = {}
random.seed(0)
for step in range(70):
    words = [random.choice("abcdefghijkl") for _ in range(4)]
    for word in words:
        if word not in embeddings:
            embeddings[word] = torch.randn(256, 128)
    train_step(model(torch.stack([embeddings[word] for word in words])).square().mean())
