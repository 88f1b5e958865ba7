import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


import functools


@functools.lru_cache(maxsize=None)  # LEAK cache features
def features(batch):
    return batch * 2


def main():
    for step in range(40):
        train_step(model(features(torch.randn(16, 32))).square().mean())


main()
