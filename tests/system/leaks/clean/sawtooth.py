import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Batch:
    def __init__(self, data):
        self.data = data
        self.parts = [{"of": self, "row": row} for row in range(200)]


def main():
    for step in range(60):
        batch = Batch(torch.randn(16, 32))
        train_step(model(batch.data).square().mean())


main()
