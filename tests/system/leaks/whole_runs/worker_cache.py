"""A dataset that caches augmented samples inside its DataLoader worker.

As in: pytorch/pytorch#13246; datasets#4883.
"""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class CachedSpectra(Dataset):
    """Signals are turned into spectra; a spectrum is computed once per signal and shift."""

    def __init__(self, signals=256, length=2048, epoch_size=200_000):
        rng = np.random.default_rng(0)
        self.frequency = rng.integers(0, 8, signals)
        self.signals = rng.standard_normal((signals, length)).astype(np.float32)
        time = np.arange(length, dtype=np.float32)
        self.signals += np.sin(time * (self.frequency[:, None] + 1) * 0.03)
        self.epoch_size = epoch_size
        self.cache = {}

    def __len__(self):
        return self.epoch_size

    def __getitem__(self, index):
        signal, shift = index % len(self.signals), index // len(self.signals)
        key = (signal, shift)
        if key not in self.cache:
            rolled = np.roll(self.signals[signal], shift)
            self.cache[key] = np.abs(np.fft.rfft(rolled)).astype(np.float64)  # LEAK any cache
        return torch.from_numpy(self.cache[key]).float(), int(self.frequency[signal])


class SpectrumNet(nn.Module):
    def __init__(self, bins=1025, width=256, classes=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(bins),
            nn.Linear(bins, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        CachedSpectra(),
        batch_size=64,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = SpectrumNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in zip(range(args.steps), loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
