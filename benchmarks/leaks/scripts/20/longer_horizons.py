"""Forecast loads of a grid: horizons grow up to a week, and each length has a table of places."""

import math

import torch
from torch import nn


class Places(nn.Module):
    """Sines of places, in a table for each length that was asked for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.tables = {}

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        length = rows.shape[1]
        if length not in self.tables:
            self.tables[length] = self._table(length)
        return rows + self.tables[length]

    def _table(self, length: int) -> torch.Tensor:
        places = torch.arange(length)[:, None]
        rates = torch.exp(-math.log(1000) * torch.arange(0, self.width, 2) / self.width)
        return torch.stack([(places * rates).sin(), (places * rates).cos()], 2).flatten(1)


class Curriculum:
    def __init__(self, first: int, last: int, steps_each: int) -> None:
        self.first = first
        self.last = last
        self.steps_each = steps_each

    def horizon(self, step: int) -> int:
        return min(self.last, self.first + step // self.steps_each)


class Forecaster(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.places = Places(width)
        self.mix = nn.Conv1d(width, width, 5, padding=4)
        self.leave = nn.Linear(width, 1)

    def forward(self, hours: torch.Tensor) -> torch.Tensor:
        rows = self.places(self.enter(hours))
        mixed = self.mix(rows.transpose(1, 2))[..., : rows.shape[1]].relu()
        return self.leave(mixed.transpose(1, 2))[..., 0]


def draw_loads(count: int, hours: int) -> tuple[torch.Tensor, torch.Tensor]:
    times = torch.randint(168, (count, 1)) + torch.arange(hours)
    day, week = 2 * math.pi * times / 24, 2 * math.pi * times / 168
    loads = 1 + 0.4 * day.sin() + 0.2 * week.cos() + 0.05 * torch.randn(times.shape)
    return torch.stack([day.sin(), week.sin(), week.cos()], 2), loads


torch.manual_seed(217)
curriculum = Curriculum(first=24, last=168, steps_each=1)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    hours, loads = draw_loads(8, curriculum.horizon(step))
    loss = nn.functional.l1_loss(model(hours), loads)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f} {len(model.places.tables)}")
