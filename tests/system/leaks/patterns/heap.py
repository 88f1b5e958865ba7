from heapq import heappush

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Hard:
    def __init__(self):
        self.examples = []

    def offer(self, loss, step, batch):
        heappush(self.examples, (loss, step, batch))  # LEAK list Hard.examples


hard = Hard()
for step in range(70):
    batch = torch.randn(512, 128)
    loss = model(batch).square().mean()
    train_step(loss)
    hard.offer(loss.item(), step, batch)
