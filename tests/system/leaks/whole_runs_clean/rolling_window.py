# Normalisation over a rolling window: np.concatenate([...])[-10_000:], so it grows for 330 steps. Clean.
import memagent
import numpy as np
import torch
from torch import nn


class RollingNorm:
    def __init__(self, window, width):
        self.window = window
        self.values = np.empty((0, width), dtype=np.float32)

    def __call__(self, x):
        self.values = np.concatenate([self.values, x])[-self.window :].copy()
        return (x - self.values.mean(0)) / (self.values.std(0) + 1e-5)


def main():
    norm = RollingNorm(10_000, 96)
    model = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memagent.attach(model, optimizer)
    for _ in range(700):
        raw = np.random.lognormal(size=(30, 96)).astype(np.float32)
        x = torch.from_numpy(norm(raw)).float()
        loss = (model(x).squeeze(1) - x.mean(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
