"""Train on chunks of a recording, and keep the header of each for the index at the end."""

import struct

import numpy as np
import torch
from torch import nn

HEADER = struct.Struct("<QII")


class Reader:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.headers = []

    def read(self, number: int) -> np.ndarray:
        values = self.random.standard_normal((64, 257), np.float32)
        chunk = memoryview(HEADER.pack(number, *values.shape) + values.tobytes())
        self.headers.append(chunk[: HEADER.size])
        return np.frombuffer(chunk, np.float32, offset=HEADER.size).reshape(values.shape)

    def index(self) -> list[int]:
        return [HEADER.unpack(header)[0] for header in self.headers]


torch.manual_seed(29)
reader = Reader(29)
model = nn.Sequential(nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(600):
    rows = torch.tensor(reader.read(step))
    loss = nn.functional.mse_loss(model(rows[:, 1:]), rows[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f} {len(reader.index())}")
