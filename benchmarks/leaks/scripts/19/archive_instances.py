"""Train on members of archives; opening the same archive with the same options is free."""

import io
import zipfile

import numpy as np
import torch
from torch import nn


class Cached(type):
    def __init__(cls, *arguments: object) -> None:
        super().__init__(*arguments)
        cls._instances = {}

    def __call__(cls, *arguments: object, **options: object) -> object:
        token = (arguments, tuple(sorted(options.items())))
        if token not in cls._instances:
            cls._instances[token] = super().__call__(*arguments, **options)
        return cls._instances[token]


class Archive(metaclass=Cached):
    def __init__(self, number: int, compression: int = zipfile.ZIP_STORED) -> None:
        self.buffer = io.BytesIO()
        random = np.random.default_rng(number)
        with zipfile.ZipFile(self.buffer, "w", compression) as members:
            for name in ("inputs", "targets"):
                rows = random.normal(size=(64, 80)).astype(np.float32)
                members.writestr(name, rows.tobytes())

    def read(self, name: str) -> torch.Tensor:
        with zipfile.ZipFile(self.buffer) as members:
            rows = np.frombuffer(bytearray(members.read(name)), np.float32)
        return torch.from_numpy(rows).view(64, 80)


torch.manual_seed(53)
model = nn.Sequential(nn.Linear(80, 128), nn.ReLU(), nn.Linear(128, 80))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(600):
    inputs, targets = (Archive(step).read(name) for name in ("inputs", "targets"))
    loss = nn.functional.mse_loss(model(inputs), 0.5 * inputs + 0.1 * targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
