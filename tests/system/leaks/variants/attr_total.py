import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class T:
    def __init__(self):
        self.total = 0

    def step(self):
        loss = model(torch.randn(16, 32)).pow(2).mean()
        train_step(loss)
        self.total = self.total + loss  # LEAK graph T.total


t = T()
for _ in range(40):
    t.step()
