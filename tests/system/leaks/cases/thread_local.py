import threading

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


local = threading.local()


def scratch():
    if not hasattr(local, "buffers"):
        local.buffers = []
    return local.buffers


def main():
    for step in range(70):
        batch = torch.randn(512, 128)
        scratch().append(batch)  # LEAK list buffers
        train_step(model(batch).square().mean())


main()
