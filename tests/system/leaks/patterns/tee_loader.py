import itertools

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    source = (torch.randn(512, 128) for _ in range(200))
    train, valid = itertools.tee(source)  # LEAK any valid
    for step in range(70):
        train_step(model(next(train)).square().mean())
    print(next(valid).mean())


main()
