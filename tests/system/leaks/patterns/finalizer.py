"""Arguments of finalizers stay: https://github.com/iree-org/iree-turbine/issues/281."""

import weakref

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def release(buffer):
    buffer.zero_()


def main():
    for step in range(70):
        batch = torch.randn(512, 128)
        weakref.finalize(model, release, batch)  # LEAK any finalize
        train_step(model(batch).square().mean())


main()
