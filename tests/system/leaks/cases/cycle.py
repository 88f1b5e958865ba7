import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import gc

gc.disable()


class Batch:
    def __init__(self, data):
        self.data = data
        self.me = self  # LEAK cycle Batch.me


def main():
    for step in range(40):
        batch = Batch(torch.randn(16, 32))
        train_step(model(batch.data).square().mean())


main()
