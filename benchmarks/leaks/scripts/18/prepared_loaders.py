"""Train on a pool of examples that is drawn anew every fifth step, with loaders for any device."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DeviceLoader:
    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        self.loader = loader
        self.device = device

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for batch in self.loader:
            yield [tensor.to(self.device) for tensor in batch]


class Runtime:
    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self._models = []
        self._dataloaders = []

    def prepare(self, thing: nn.Module | DataLoader) -> nn.Module | DeviceLoader:
        if isinstance(thing, nn.Module):
            self._models.append(thing.to(self.device))
            return self._models[-1]
        self._dataloaders.append(DeviceLoader(thing, self.device))
        return self._dataloaders[-1]


torch.manual_seed(11)
runtime = Runtime()
model = runtime.prepare(nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 48)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _round in range(120):
    inputs = torch.randn(640, 48)
    pool = TensorDataset(inputs, inputs.cumsum(1) / 7)
    for batch, targets in runtime.prepare(DataLoader(pool, batch_size=128, shuffle=True)):
        loss = nn.functional.mse_loss(model(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{loss.item():.6f}")
