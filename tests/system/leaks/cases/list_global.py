import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


LOSSES = []


def step():
    loss = model(torch.randn(16, 32)).square().mean()
    train_step(loss)
    LOSSES.append(loss)  # LEAK list LOSSES


for _ in range(40):
    step()
