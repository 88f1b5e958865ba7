import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class AverageMeter:
    def __init__(self):
        self.total = 0
        self.count = 0

    def update(self, value, n=1):
        self.total += value * n  # LEAK graph AverageMeter.total
        self.count += n


meter = AverageMeter()
for step in range(70):
    output = model(torch.randn(256, 128))
    loss = output.square().mean()
    train_step(loss)
    meter.update(model(torch.randn(256, 128)).mean())
