"""Denoise windows of a long recording, which a loader draws at random, again from its end on."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recording(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.sin(torch.arange(512) * 0.01 * (index % 50)) + torch.randn(
            512, generator=generator
        )


torch.manual_seed(3)
loader = DataLoader(Recording(100_000), batch_size=32, shuffle=True)
windows = itertools.cycle(loader)
model = nn.Sequential(nn.Linear(512, 128), nn.GELU(), nn.Linear(128, 512))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(500):
    clean = next(windows)
    noisy = clean + 0.3 * torch.randn_like(clean)
    loss = nn.functional.mse_loss(model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
