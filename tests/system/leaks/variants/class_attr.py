import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Bank:
    items = []

    @classmethod
    def put(cls, x):
        cls.items.append(x)  # LEAK list Bank.items


for _ in range(40):
    x = torch.randn(16, 32)
    train_step(model(x).pow(2).mean())
    Bank.put(x)
