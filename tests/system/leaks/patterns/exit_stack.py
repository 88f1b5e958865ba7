from contextlib import ExitStack

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def clear(tensor):
    tensor.zero_()


def main():
    with ExitStack() as stack:
        for step in range(70):
            batch = torch.randn(512, 128)
            stack.callback(clear, batch)  # LEAK any stack
            train_step(model(batch).square().mean())


main()
