from contextvars import ContextVar

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


trace = ContextVar("trace", default=())


def remember(value):
    trace.set((*trace.get(), value))  # LEAK any trace


def main():
    for step in range(70):
        output = model(torch.randn(512, 128))
        train_step(output.square().mean())
        remember(output.detach())


main()
