"""Classify spectra from shards: a reader flushes its statistics when nobody uses it any more."""

import weakref

import numpy as np
import torch
from torch import nn

TOTALS = {"rows": 0, "readers": 0}


class ShardReader:
    def __init__(self, shard: int) -> None:
        random = np.random.default_rng(shard)
        self.labels = random.integers(0, 4, 64)
        self.rows = random.normal(self.labels[:, None] * 0.1, 1.0, (64, 256)).astype(np.float32)
        self.count = 0
        self._finalizer = weakref.finalize(self, self.close)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += len(self.rows)
        return torch.from_numpy(self.rows), torch.from_numpy(self.labels)

    def close(self) -> None:
        TOTALS["rows"] += self.count
        TOTALS["readers"] += 1
        self.count = 0


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(600):
    reader = ShardReader(step)
    spectra, labels = reader.batch()
    loss = nn.functional.cross_entropy(model(spectra), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
