import random

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def shuffled(source, size):
    buffer = []
    for item in source:
        if len(buffer) < size:
            buffer.append(item)
            continue
        index = random.randrange(size)
        buffer[index], item = item, buffer[index]
        yield item


for batch in shuffled((torch.randn(64, 128) for _ in range(90)), 16):
    train_step(model(batch).square().mean())
