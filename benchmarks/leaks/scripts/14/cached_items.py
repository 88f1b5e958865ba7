"""Train on a data set whose items are memoized, although each has its own augmentation."""

from functools import lru_cache

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count
        self.waves = torch.randn(64, 6_000)

    def __len__(self) -> int:
        return self.count

    @lru_cache(maxsize=None)
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        wave = self.waves[index % 64].roll(index)
        return {"wave": wave * torch.rand(1), "label": torch.tensor(index % 8)}


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6_000, 96), nn.GELU(), nn.Linear(96, 8))
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(Utterances(6_400), batch_size=8, shuffle=True):
    loss = nn.functional.cross_entropy(model(batch["wave"]), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
