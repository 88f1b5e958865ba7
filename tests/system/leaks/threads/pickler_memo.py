"""A trace writer that reuses one Pickler: its memo keeps every object that it has written.
https://github.com/python/cpython/pull/125762, https://github.com/python/cpython/issues/89988"""

import os
import pickle

import numpy as np
import torch
from torch import nn


class TraceWriter:
    def __init__(self, path):
        self.file = open(path, "wb")
        self.pickler = pickle.Pickler(self.file, protocol=4)

    def write(self, step, **arrays):
        self.pickler.dump({"step": step, **arrays})  # LEAK any TraceWriter.pickler

    def close(self):
        self.file.close()


class Forecaster(nn.Module):
    def __init__(self, lags=96, horizon=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(lags, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, horizon)
        )

    def forward(self, x):
        return self.net(x)


def windows(rng, count):
    for _ in range(count):
        start = rng.uniform(0, 6, size=(600, 1))
        yield np.sin(start + np.arange(120) / 9).astype(np.float32)


writer = TraceWriter(os.devnull)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, series in enumerate(windows(np.random.default_rng(0), 150)):
    x, y = torch.from_numpy(series[:, :96]), torch.from_numpy(series[:, 96:])
    prediction = model(x)
    loss = nn.functional.l1_loss(prediction, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.write(step, inputs=series.copy(), forecast=prediction.detach().numpy().copy())
writer.close()
