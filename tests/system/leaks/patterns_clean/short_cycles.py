import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Batch:
    def __init__(self, data):
        self.data = data
        self.views = [View(self)]


class View:
    def __init__(self, batch):
        self.batch = batch


import gc

for step in range(70):
    batch = Batch(torch.randn(64, 128))
    train_step(model(batch.data).square().mean())
    if step % 6 == 0:
        gc.collect()
