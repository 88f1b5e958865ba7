import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import warnings

warnings.simplefilter("ignore")


def penalty():
    weights = torch.randn(256, requires_grad=True)
    (weights**3).sum().backward(create_graph=True)  # LEAK gradient gradients


for step in range(40):
    penalty()
    train_step(model(torch.randn(16, 32)).square().mean())
