import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Meter:
    values = []

    def __init__(self, name):
        self.name = name

    def update(self, value):
        self.values.append(value.detach())  # LEAK list Meter.values

    def average(self):
        return sum(v.mean().item() for v in self.values[-10:]) / 10


meters = {name: Meter(name) for name in ("logits", "targets")}
for step in range(70):
    logits = model(torch.randn(512, 128))
    train_step(logits.square().mean())
    meters["logits"].update(logits)
    meters["targets"].update(torch.zeros(512, 8))
