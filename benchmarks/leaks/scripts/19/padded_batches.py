"""Tag sequences of many lengths; a batch can have extra rows, which come after its own."""

import random

import numpy as np
import torch
from torch import nn


def collate(samples: list[np.ndarray], rows: list[np.ndarray] = []) -> torch.Tensor:
    length = max(len(sample) for sample in samples)
    for sample in samples:
        padded = np.zeros((length, 32), np.float32)
        padded[: len(sample)] = sample
        rows.append(padded)
    return torch.from_numpy(np.stack(rows[-len(samples) :]))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(32, 48, 5, padding=2)
        self.head = nn.Linear(48, 32)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden = self.convolution(sequences.transpose(1, 2)).relu()
        return self.head(hidden.transpose(1, 2))


torch.manual_seed(39)
draw = random.Random(39)
noise = np.random.default_rng(39)
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _step in range(500):
    lengths = [draw.randrange(20, 60) for _ in range(16)]
    batch = collate([noise.normal(size=(length, 32)) for length in lengths])
    loss = nn.functional.mse_loss(model(batch), batch.cumsum(1) / 8)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
