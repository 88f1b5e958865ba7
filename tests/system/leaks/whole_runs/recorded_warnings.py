"""Collects data-quality warnings of the whole run and prints a summary at the end.

As in: python warnings threads.
"""

import argparse
import collections
import warnings

import numpy as np
import torch
import torch.nn as nn


class OutlierWarning(UserWarning):
    """Raised for batches with outliers; carries the batch."""

    def __init__(self, text, rows):
        super().__init__(text)
        self.rows = rows


def clean(batch, limit=3.5):
    outliers = np.abs(batch) > limit
    if outliers.any():
        rows = batch.astype(np.float64)
        warnings.warn(
            OutlierWarning(f"{int(outliers.sum())} values beyond {limit}", rows), stacklevel=2
        )  # LEAK any caught|warn|log
    return np.clip(batch, -limit, limit)


class Denoiser(nn.Module):
    def __init__(self, inputs=120, width=420):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, inputs),
        )

    def forward(self, x):
        return self.net(x)


def train(steps):
    rng = np.random.default_rng(5)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        raw = rng.standard_normal((160, 120), dtype=np.float32)
        x = torch.from_numpy(clean(raw))
        noisy = x + 0.1 * torch.randn_like(x)
        loss = (model(noisy) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(args.steps)
    summary = collections.Counter(w.category.__name__ for w in caught)
    print("warnings:", dict(summary))


if __name__ == "__main__":
    main()
