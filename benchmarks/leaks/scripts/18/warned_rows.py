"""Fit noisy tables: rows that are out of range are clipped, and a warning says which values."""

import logging
import warnings

import numpy as np
import torch
from torch import nn

logging.captureWarnings(True)
logging.getLogger("py.warnings").addHandler(logging.NullHandler())


def clip_rows(table: np.ndarray, limit: float = 2.0) -> np.ndarray:
    outside = np.abs(table) > limit
    if outside.any():
        warnings.warn(f"clipped {outside.sum()} values: {table[outside].tolist()}", stacklevel=1)
    return table.clip(-limit, limit)


random = np.random.default_rng(12)
torch.manual_seed(12)
model = nn.Sequential(nn.Linear(160, 96), nn.ReLU(), nn.Linear(96, 160))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(500):
    table = random.normal(0.0, 1.4, (64, 160)).astype(np.float32)
    inputs = torch.from_numpy(clip_rows(table))
    loss = nn.functional.l1_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
