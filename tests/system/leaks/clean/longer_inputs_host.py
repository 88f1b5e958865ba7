"""The curriculum makes texts longer: rows, arrays and bytes of a batch grow with it, and nothing is kept."""

import numpy as np
import torch
from torch import nn


class Corpus:
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.rows = []
        self.raw = b""

    def batch(self, step):
        length = 400 + 40 * step
        self.rows = [self.rng.integers(0, 255, length).tolist() for _ in range(8)]
        self.raw = bytes(number for row in self.rows for number in row)
        return torch.tensor(self.rows, dtype=torch.float32)


corpus = Corpus()
scale = nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([scale], lr=1e-3)
for step in range(130):
    x = corpus.batch(step) / 255
    loss = (scale * x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
