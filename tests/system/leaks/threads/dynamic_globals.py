"""A notebook habit: a global variable for each step. As in
https://discuss.pytorch.org/t/cuda-out-of-memory-error-understanding-how-pytorch-stores-class-variable/13778."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def run(epochs, batches):
    for epoch in range(epochs):
        for i in range(batches):
            x = torch.randn(768, 128)
            out = model(x)
            loss = (out - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            globals()[f"out_{epoch}_{i}"] = out.detach()  # LEAK any globals


run(3, 50)
